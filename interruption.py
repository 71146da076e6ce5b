"""Importing this file first lets Ctrl-C end a script by one line, also while the script's imports last.

They take seconds. The KeyboardInterrupt of a Ctrl-C in that time can be swallowed by the library that is
being imported, or become another error (NumPy as part of PyTorch). So until the script has defined `main`,
Ctrl-C ends the process without an exception.
"""

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def end(kind, error, trace):
    """For sys.excepthook: one line for Ctrl-C; the exit status stays Python's own."""
    if issubclass(kind, KeyboardInterrupt):
        _say()
    else:
        sys.__excepthook__(kind, error, trace)


def _say():
    print(f"\n{Path(sys.argv[0]).name}: interrupted", file=sys.stderr, flush=True)


def _on_signal(number, frame):
    if hasattr(sys.modules["__main__"], "main"):
        signal.default_int_handler(number, frame)  # raises KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    _say()
    signal.raise_signal(number)


def _runs_a_script() -> bool:
    """False in tests and notebooks, which import scripts, and in processes that a script starts."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return file is not None and Path(file).resolve().parent in (ROOT, ROOT / "launch")


if _runs_a_script():
    sys.excepthook = end
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup, say
        signal.signal(signal.SIGINT, _on_signal)
