"""Ctrl-C while a script is still importing ends it by one line, a reader who has gone by none."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [path.stem for path in ROOT.glob("*.py") if '__name__ == "__main__"' in path.read_text()]
# like NumPy's as part of PyTorch's, this import swallows what Ctrl-C raises
TORCH = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("Ctrl-C was swallowed")
except KeyboardInterrupt:
    print("Ctrl-C was swallowed")
raise ImportError("of a part")
"""


@pytest.mark.parametrize("script", [*SCRIPTS, "launch/measure_gpu"])
def test_while_importing(tmp_path, script):
    (tmp_path / "torch.py").write_text(TORCH)
    done = subprocess.run(
        [sys.executable, ROOT / f"{script}.py"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "")
    assert done.stderr == f"\n{Path(script).name}.py: interrupted\n"


def test_after_the_imports_it_is_an_exception(tmp_path):
    """A script may catch it; here none does."""
    code = "import os, signal; from host import interruption\n"
    code += "def main(): os.kill(os.getpid(), signal.SIGINT)\n"
    code += "try:\n    main()\nfinally:\n    print('tidied up')\n"
    script = tmp_path / "launch" / "a.py"
    script.parent.mkdir()
    script.write_text(code)
    (tmp_path / "host").mkdir()
    shutil.copy(ROOT / "host" / "interruption.py", tmp_path / "host")
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGINT
    assert (done.stdout, done.stderr) == ("tidied up\n", "\na.py: interrupted\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_has_gone(unbuffered):
    command = [sys.executable, ROOT / "count.py", "config/gpt2.py", "config/llama_3b.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as script:
        script.stdout.close()
        assert script.stderr.read() == ""


def test_without_poll_a_script_ends_as_it_should():
    """As on Windows."""
    code = "import select; del select.poll; from host import interruption; interruption.install(); print(1)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_another_pipe_that_breaks_is_told():
    code = "import os; from host import interruption; interruption.install()\n"
    code += "r, w = os.pipe(); os.close(r); os.write(w, b' ')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")


def test_a_program_that_imports_a_script_keeps_its_own_ctrl_c():
    code = "from host import interruption; import signal, sys; "
    code += "print(signal.getsignal(signal.SIGINT), sys.excepthook)"
    command = [sys.executable, "-c", code]
    fresh = [sys.executable, "-c", code.replace("from host import interruption; ", "")]
    said = [subprocess.check_output(c, cwd=ROOT, text=True).split(" at ")[0] for c in (command, fresh)]
    assert said[0] == said[1]
