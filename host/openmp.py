"""Importing this file shortens the time for which idle threads spin. Import it before torch.

OpenMP's threads wait for each other after each operation of a CPU. By default they spin for long, which
takes the processor from the thread that they wait for when another process is running. Here they spin 1,000
times and then sleep: results/waiting_threads has the measurements. libgomp reads the environment when torch
loads it. A user's own setting wins.
"""

import os

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

if not any(name in os.environ for name in SETTINGS):
    os.environ["GOMP_SPINCOUNT"] = "1000"
