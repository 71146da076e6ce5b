"""Importing this file keeps processes that a script starts from importing files of the working directory.

Python looks there first where it runs `-c` or `-m`, as multiprocessing does: a numpy.py beside one's texts
would run in place of NumPy. The processes look in this repository instead.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_SCRIPTS = [ROOT / name for name in ("data", "launch", "results")]


def _runs_a_script() -> bool:
    """False in tests and notebooks, which import scripts and have an environment of their own."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    folder = Path(file).resolve().parent if file else None
    return file is not None and (folder == ROOT or any(map(folder.is_relative_to, OF_SCRIPTS)))


if _runs_a_script() and "PYTHONSAFEPATH" not in os.environ:
    os.environ["PYTHONSAFEPATH"] = "1"
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{known}" if known else str(ROOT)
