"""Importing this file lets idle threads sleep instead of spin. Import it before torch.

OpenMP's threads wait for each other after each operation of a CPU. By default they spin, which takes the
processor from the thread that they wait for when another process is running. libgomp reads the environment
when torch loads it. A user's own setting wins.
"""

import os

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

if not any(name in os.environ for name in SETTINGS):
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
