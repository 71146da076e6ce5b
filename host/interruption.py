"""Importing this file first lets Ctrl-C end a script by one line, also while the script's imports last, and
a reader who has gone, such as `head`, by none.

They take seconds. The KeyboardInterrupt of a Ctrl-C in that time can be swallowed by the library that is
being imported, or become another error (NumPy as part of PyTorch). So until the script has defined `main`,
Ctrl-C ends the process without an exception.
"""

import atexit
import os
import select
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def install():
    """From here on, one line for Ctrl-C and none for a reader who has gone, in place of a traceback; the
    exit status stays Python's own.
    """
    sys.excepthook = _end
    atexit.unregister(_drop_what_nobody_reads)
    atexit.register(_drop_what_nobody_reads)


def _end(kind, error, trace):
    if issubclass(kind, KeyboardInterrupt):
        _say()
    elif not (issubclass(kind, BrokenPipeError) and _nobody_reads()):
        sys.__excepthook__(kind, error, trace)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has gone."""
    if not hasattr(select, "poll"):  # on Windows
        return False
    poll = select.poll()
    poll.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _drop_what_nobody_reads():
    if _nobody_reads():  # Python would complain of what it cannot flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
    install()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not under nohup, say
        signal.signal(signal.SIGINT, _on_signal)
