"""Importing this file gives NumPy's BLAS one thread, here and in the processes of the tests.

Import it before NumPy.

OpenBLAS's threads spin while they wait. Two processes of tests that do so on two cores fit the same scaling
curves in 93 seconds; with one thread each, in 7.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
