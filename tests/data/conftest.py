"""Stand-ins for the hub and for the packages, shared by the tests of the prepare scripts."""

import lzma
import subprocess
from pathlib import Path

import numpy as np
import pytest

from corpus import packages
from corpus.loader import Dataset
from tests.data.prepare_scripts import tar_bytes, write_parquet


@pytest.fixture
def texts():
    """texts(folder, split) -> the documents of a data set of bytes, in order."""

    def read(folder, *splits):
        found = []
        for split in splits or ("train", "val"):
            dataset = Dataset(folder, split, 1)
            ends = np.flatnonzero(dataset.tokens == 256)
            found += [
                bytes(part.tolist()[:-1]).decode() for part in np.split(dataset.tokens, ends + 1)[:-1]
            ]
        return found

    return read


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """hub["owner/name"] = columns or an exception: what load_dataset finds under the name. The real library
    reads it, from Parquet files. A key (name, revision) stands for that revision alone, and a key
    (name, configuration or folder) for that part."""
    datasets = pytest.importorskip("datasets")
    real, served = datasets.load_dataset, {}
    served["asked"] = []

    def load_dataset(path, name=None, split=None, streaming=False, revision=None, data_dir=None):
        assert streaming
        part = revision or name or data_dir
        served["asked"].append((path, name or data_dir, split, revision))
        found = served[(path, part) if revision or (path, part) in served else path]
        if isinstance(found, Exception):
            raise found
        folder = tmp_path / "hub" / path / (part or "main")
        folder.mkdir(parents=True, exist_ok=True)
        files = {split: write_parquet(folder, found)}
        return real("parquet", data_files=files, split=split, streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return served


@pytest.fixture
def debian_package(tmp_path):
    """debian_package({path: bytes}) -> the path of a .deb of the usual layout."""

    def make(files, compression="xz"):
        data = tar_bytes({f"./{name}": content for name, content in files.items()}, "w")
        if compression == "xz":
            data = lzma.compress(data)
        else:
            data = pytest.importorskip("pyarrow").compress(data, "zstd", asbytes=True)
        members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", f"data.tar.{compression}": data}
        package = b"!<arch>\n"
        for name, content in members.items():
            package += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            package += content + b"\n" * (len(content) % 2)
        path = tmp_path / "some_1%3a1.0-1_all.deb"
        path.write_bytes(package)
        return path

    return make


@pytest.fixture
def download(monkeypatch):
    """download(path) makes the package clients fetch that file; returns the list of their commands."""

    def serve(path):
        commands = []

        def fetch(command, cwd, **_):
            commands.append(command)
            (Path(cwd) / path.name).write_bytes(path.read_bytes())
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(packages.subprocess, "run", fetch)
        return commands

    return serve
