"""Sharded checkpoints of several ranks, and kills within a save."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training import sharded_ranks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def found(dataset, tmp_path_factory):
    program = ROOT / "tests" / "training" / "sharded_ranks.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path_factory.mktemp("ranks"), dataset],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("scenario", [one.__name__ for one in sharded_ranks.SCENARIOS])
def test_scenarios(found, scenario):
    results, errors = found
    assert results[scenario] == "", errors
