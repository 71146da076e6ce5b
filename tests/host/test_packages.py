"""The command that installs a package."""

from host.packages import install

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("found", "told"), [([object()], "pip install x"), ([], "uv pip install x")])
def test_environments_without_pip_are_told_of_uv(monkeypatch, found, told):
    monkeypatch.setattr(importlib.metadata, "distributions", lambda name: found if name == "pip" else [])
    assert install("x") == told


def test_setuptools_can_be_imported_after_it():
    """torch.compile imports it. On Python 3.11 it refuses once somebody has looked for pip as a module."""
    code = "from host.packages import install; install('x'); import setuptools"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=root, check=True)
