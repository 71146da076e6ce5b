"""What bench.py is made of: a process for each model, what is measured in it, and the report."""
