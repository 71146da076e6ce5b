"""What a process asks of its machine: files whole or not at all, signals, threads, a safe import path."""
