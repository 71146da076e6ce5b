"""The process of the evaluation harness: how it ends, and what is said then."""

import subprocess
import sys

import pytest

from evaluation import EvaluationError, zero_shot


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL.*out of memory"),
        ("sys.exit(3)", "status 3"),
        ("sys.exit(0)", "status 0"),
    ],
)
def test_a_process_that_dies(monkeypatch, end, said):
    monkeypatch.setattr(zero_shot, "START", f"import os, signal, sys; sys.stdin.readline(); {end}")
    with pytest.raises(EvaluationError, match=said):
        zero_shot.evaluate({"a": "nowhere"})


def test_ctrl_c_in_the_process(monkeypatch):
    start = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"
    monkeypatch.setattr(zero_shot, "START", start)
    with pytest.raises(KeyboardInterrupt):
        zero_shot.evaluate({"a": "nowhere"})


def test_the_process_ends_with_whoever_started_it():
    """When standard input closes, the harness does not go on alone."""
    start = (
        "import sys, threading; sys.path.insert(0, sys.argv[1])\n"
        "from evaluation import harness\n"
        "harness.answer = lambda **question: threading.Event().wait(60)\n"
        "harness.main()"
    )
    command = [sys.executable, "-c", start, str(zero_shot.ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"{}\n")
        process.stdin.close()
        assert process.wait(60) == 1
