"""Imported in the server from which the processes of benchmarks/worker.py are forked.

What it imports need not be imported again, and is never looked at by the processes' garbage collectors.
Nothing here may ask for a GPU: CUDA does not survive a fork.
"""

import gc

import torch._dynamo  # noqa: F401 (an optimizer imports it at its first step)

import benchmarks.measurements
import benchmarks.training_run
import benchmarks.worker  # noqa: F401

gc.collect()
gc.freeze()
