"""Threads soon sleep where they wait, unless the user says otherwise."""

from host import openmp

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "1000"}),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_WAIT_POLICY": "PASSIVE"}),
        ({"GOMP_SPINCOUNT": "20000"}, {"GOMP_SPINCOUNT": "20000"}),
    ],
)
def test_a_users_setting_wins(given, expected):
    clean = {name: value for name, value in os.environ.items() if name not in openmp.SETTINGS}
    code = "from host import openmp; import os; "
    code += "print({n: os.environ[n] for n in openmp.SETTINGS if n in os.environ})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=clean | given, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == expected


@pytest.mark.parametrize("script", ["train", "sample", "evaluate", "finetune", "bench", "tests/conftest"])
def test_scripts_import_it_before_anything_else(script):
    tree = ast.parse((ROOT / f"{script}.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in imports[:2] for alias in node.names]
    assert "openmp" in names
    assert not {*names} & {"torch", "numpy"}


def test_it_does_not_load_torch():
    tree = ast.parse(Path(openmp.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [alias.name for node in imports for alias in node.names] == ["os"]
