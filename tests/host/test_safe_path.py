"""No process that a script starts imports files of the working directory."""

import graphlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_imports import SCRIPTS, imported, module_files

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys; sys.path.insert(0, {root!r}); from host import safe_path
import multiprocessing

def work(_):
    import queue
    return __import__("own").NAME

if __name__ == "__main__":
    multiprocessing.set_start_method({method!r})
    multiprocessing.set_forkserver_preload(["own"])
    with multiprocessing.Pool(1) as pool:
        print(pool.map(work, [0]))
"""


@pytest.mark.parametrize(("folder", "method"), [(".", "spawn"), ("data/mine", "forkserver")])
def test_multiprocessing(tmp_path, folder, method):
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    script = root / folder / "script.py"
    script.parent.mkdir(parents=True)
    elsewhere.mkdir()
    (root / "host").mkdir()
    shutil.copy(ROOT / "host" / "safe_path.py", root / "host")
    (root / "own.py").write_text("NAME = 'of the repository'\n")
    script.write_text(SCRIPT.format(root=str(root), method=method))
    for name in ("own", "queue", "random", "socket"):
        (elsewhere / f"{name}.py").write_text("open('ran', 'w')\nNAME = 'of the working directory'\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [sys.executable, script]
    done = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("['of the repository']\n", "")
    assert not (elsewhere / "ran").exists()


def test_a_program_that_imports_a_script_keeps_its_environment():
    code = "from host import safe_path; import os; print('PYTHONSAFEPATH' in os.environ)"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    assert said == "False\n"


def test_every_script_imports_it():
    files = module_files()
    graph = {name: imported(path, files.keys()) for name, path in files.items()}
    reached = {}
    for name in graphlib.TopologicalSorter(graph).static_order():
        found = graph.get(name, set())
        reached[name] = name == "host.safe_path" or any(reached[other] for other in found)
    prepare = {name for name in graph if name.endswith(".prepare")}
    assert len(prepare) > 10
    assert not [name for name in SCRIPTS | prepare | {"launch.measure_gpu"} if not reached[name]]
