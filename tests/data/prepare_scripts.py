"""What the tests of the prepare scripts call."""

import importlib.util
import io
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load_script(name):
    """The module data/<name>/prepare.py."""
    path = ROOT / "data" / name / "prepare.py"
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_parquet(folder, rows, shards=2):
    """`rows`, a dict of columns, in several files of several row groups each."""
    import pyarrow
    from pyarrow import parquet

    table, paths = pyarrow.table(rows), []
    size = -(-len(table) // shards)
    for i in range(shards):
        paths.append(str(folder / f"{i:03}_00000.parquet"))
        parquet.write_table(table.slice(i * size, size), paths[-1], row_group_size=7)
    return paths


def tar_bytes(files, mode="w:xz"):
    """A tar archive of {path: bytes}."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return buffer.getvalue()
