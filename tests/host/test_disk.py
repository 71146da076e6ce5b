"""JSON files of every kind of damage, the words for a full disk, links that nothing follows, and texts
that are appended whole.
"""

from host.disk import append_whole, lacks_space, lock, parse_json, read_json, why_not_written, write_whole

import errno
import re
import resource

import pytest

from ablation import execution
from ablation.plan import Plan, PlanError, claimed
from ablation.product import Planned
from benchmarks.lines import Lines, LinesError
from comparison.runs import read_run
from configurator import ConfigError, resolve
from corpus import DataError
from corpus.binary import prepare
from corpus.loader import Dataset
from finetuning import records
from models.architecture import ModelConfig
from reports import picture
from training import checkpoint, pretrained
from training.checkpoint import CheckpointError
from training.log import Log, RunFolderError, draw_losses, open_run, read_log

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DEEP.encode(), "as JSON (it is nested too deeply); mend it"),
        (b"{", "cannot be read as JSON ("),
        (b"\xff\xfe\xff", "cannot be read as JSON ("),
        (b"[1]", "JSON list"),
        (None, "No such file"),
    ],
)
def test_what_is_no_object_raises_the_error_that_was_asked_for(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyError) as caught:
        read_json(path, KeyError, "; mend it")
    assert said in caught.value.args[0]
    assert str(path) in caught.value.args[0]


def test_deeply_nested_lines():
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json('{"a": ' * 100_000)


def resume(folder):
    resolve(ModelConfig, [], saved=lambda values: folder / "config.json")


@pytest.mark.parametrize(
    ("file", "read", "error"),
    [
        ("config.json", resume, ConfigError),
        ("config.json", lambda folder: pretrained.open_source(str(folder)), CheckpointError),
        ("config.json", read_run, RunFolderError),
        ("meta.json", lambda folder: Dataset(folder, "train", 8), DataError),
        ("ablation.json", Plan, PlanError),
        ("result.json", lambda folder: records.read(folder / "result.json", {}), RunFolderError),
        ("log.jsonl", read_log, RunFolderError),
    ],
)
def test_deeply_nested_files_are_refused_by_every_reader(tmp_path, file, read, error):
    (tmp_path / file).write_text(DEEP + "\n{}\n")
    with pytest.raises(error, match=file.replace(".", r"\.")):
        read(tmp_path)


def test_words_for_errors_of_writing():
    full = OSError(errno.ENOSPC, "No space left on device")
    torch_error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1024 vs 918")
    torch_error.__context__ = full
    other = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    for error in (full, torch_error, other):
        assert why_not_written(error) == "the disk is full: free some space on it"
        assert lacks_space(error)
    assert "quota" in why_not_written(OSError(errno.EDQUOT, "Disk quota exceeded"))
    denied = OSError(errno.EACCES, "Permission denied")
    assert why_not_written(denied) == "Permission denied"
    assert not lacks_space(denied)
    assert why_not_written(ValueError("odd")) == "odd"
    of_torch = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 42368 vs 42260")
    of_torch.__context__ = OSError(errno.EFBIG, "File too large")
    assert why_not_written(of_torch) == "File too large"
    assert lacks_space(of_torch)
    loop = ValueError("loop")
    loop.__context__ = RuntimeError("back")
    loop.__context__.__context__ = loop
    assert why_not_written(loop) == "loop"


@pytest.mark.parametrize("before", [None, "", "kept\n"])
def test_a_text_is_appended_whole_or_not_at_all(tmp_path, before):
    path = tmp_path / "texts.txt"
    if before is not None:
        path.write_text(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a part of the text has room
    try:
        with pytest.raises(OSError, match=r"texts\.txt .*File too large"):
            append_whole(path, 100_000 * "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (path.read_text() if path.exists() else None) == before
    append_whole(path, "é")
    assert path.read_text(encoding="utf-8") == (before or "") + "é"


def claim_run(folder):
    with open_run(str(folder), resume=False):
        pass


def claim_study(folder):
    with claimed(folder):
        pass


def start_run(folder):
    run = Planned("", "arm", {"dataset": "nowhere"})
    execution.train(run, 0, folder, {}, [], 1).wait()


def prepare_data(folder):
    prepare(lambda: iter(["text"]), {}, "bytes", folder / "a", 0.5, workers=1)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.json.tmp", lambda folder: write_whole(folder / "a.json", "{}")),
        ("loss.png.tmp", lambda folder: picture.write(draw_losses("a", []), folder / "loss.png")),
        ("a.pt", lambda folder: checkpoint.write_archive(folder / "a.pt", {})),
        ("step_00000001.pt.tmp", lambda folder: checkpoint.save(folder, 1, {}, 1, best=False)),
        ("log.jsonl.tmp", lambda folder: Log(folder, 0).close()),
    ],
)
def test_a_link_in_the_place_of_a_new_file_is_removed(tmp_path, name, write):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / name).symlink_to(victim)
    write(tmp_path)
    assert victim.read_text() == "kept"
    assert not [path for path in tmp_path.iterdir() if path.is_symlink()]


@pytest.mark.parametrize(
    ("name", "write", "error"),
    [
        (".lock", claim_run, RunFolderError),
        (".lock", claim_study, OSError),
        ("output.log", start_run, OSError),
        ("texts.txt", lambda folder: append_whole(folder / "texts.txt", "x"), OSError),
        ("lines.jsonl", lambda folder: Lines(folder / "lines.jsonl", {}), LinesError),
        ("a.partial", prepare_data, DataError),
    ],
)
def test_a_link_in_the_place_of_a_file_to_go_on_with_is_refused(tmp_path, name, write, error):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    victim.mkdir() if name == "a.partial" else victim.write_text("kept")
    kept = victim / "kept" if name == "a.partial" else victim
    kept.write_text("kept")
    (folder / name).symlink_to(victim)
    with pytest.raises(error, match=rf"{re.escape(name)}|symbolic link"):
        write(folder)
    assert kept.read_text() == "kept"


def test_a_lock_is_one_process_s(tmp_path):
    with lock(tmp_path / ".lock"), pytest.raises(BlockingIOError):
        lock(tmp_path / ".lock")
    lock(tmp_path / ".lock").close()
