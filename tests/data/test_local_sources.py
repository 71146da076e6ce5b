"""--input of downloaded data sets: folders of save_to_disk and `hf download`, and files."""

import json
import os

import pytest

from corpus import DataError, sources
from tests.data.prepare_scripts import load_script, write_parquet

datasets = pytest.importorskip("datasets")
text_script = load_script("text")
docling_mix = load_script("docling_mix")
OF_HUB = {name: load_script(name) for name in ("fineweb", "fineweb_edu", "gneissweb", "openwebtext")}
N = 60
TEXTS = [f"page {i} " + "of a download " * (i % 4) for i in range(N)]
OTHERS = [f"another {i}" for i in range(N)]
CONFIGS = """\
---
configs:
- config_name: small
  data_files:
  - split: train
    path: small/train-*.parquet
  - split: test
    path: small/test-*.parquet
- config_name: large
  data_files: large/*.parquet
---
# A data set
"""


def run(out, script=text_script, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    script.main(script.PrepareConfig(out=str(out), **keys))
    return json.loads((out / "meta.json").read_text())


def rows(texts=TEXTS):
    return {"text": texts, "id": [f"<{i}>" for i in range(len(texts))], "score": [3.1] * len(texts)}


@pytest.fixture
def saved(tmp_path):
    """A DatasetDict that was saved to disk, in which some rows were taken out."""
    train = datasets.Dataset.from_dict(rows()).filter(lambda row: row["id"] != "<3>")
    both = {"train": train, "test": datasets.Dataset.from_dict(rows(OTHERS))}
    datasets.DatasetDict(both).save_to_disk(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def repository(tmp_path):
    """What `hf download` leaves of a data set of two configurations."""
    folder = tmp_path / "downloads" / "web"
    for name, texts in (("small/train", TEXTS), ("small/test", OTHERS), ("large/all", OTHERS)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for i, path in enumerate(write_parquet(tmp_path, rows(texts))):
            (tmp_path / path).rename(folder / f"{name}-{i}.parquet")
    (folder / "README.md").write_text(CONFIGS)
    return folder


def test_a_folder_of_save_to_disk(saved, tmp_path, texts):
    meta = run(tmp_path / "a", input=str(saved))
    assert sorted(texts(tmp_path / "a")) == sorted(text for i, text in enumerate(TEXTS) if i != 3)
    assert meta["source"]["saved"] == "train"
    run(tmp_path / "b", input=str(saved), hub_split="test")
    assert sorted(texts(tmp_path / "b")) == sorted(OTHERS)
    run(tmp_path / "c", input=str(saved / "test"), max_docs=30)
    assert sorted(texts(tmp_path / "c")) == sorted(OTHERS[:30])
    documents = sources.first(sources.local(str(saved / "test"), ["text"]).texts(), 30)
    begun = documents()
    read = [next(begun) for _ in range(7)]
    assert read + list(documents(json.loads(json.dumps(begun.state())))) == OTHERS[:30]
    with pytest.raises(DataError, match=r"no split 'dev': it has \['train', 'test'\]"):
        run(tmp_path / "d", input=str(saved), hub_split="dev")
    with pytest.raises(DataError, match=r"no field 'content'.*text, id"):
        run(tmp_path / "d", input=str(saved), field="content")
    datasets.Dataset.from_dict(rows(OTHERS)).save_to_disk(tmp_path / "other")
    with pytest.raises(DataError, match=r"(?s)prepared otherwise.*fingerprint"):
        run(tmp_path / "a", input=str(tmp_path / "other"))


def test_a_saved_folder_continues_where_it_stopped(saved):
    source = sources.local(str(saved), ["text"])
    first = source.texts()()
    begun = [next(first) for _ in range(20)]
    rest = list(source.texts()(json.loads(json.dumps(first.state()))))
    assert begun + rest == [text for i, text in enumerate(TEXTS) if i != 3]


def test_a_download_of_several_configurations_is_asked_about(repository, tmp_path, texts):
    with pytest.raises(DataError, match=r"several configurations: .*--hub_config, of small, large"):
        run(tmp_path / "set", input=str(repository))
    with pytest.raises(DataError, match="no configuration 'huge': it has small, large"):
        run(tmp_path / "set", input=str(repository), hub_config="huge")
    assert not (tmp_path / "set").exists()
    run(tmp_path / "a", input=str(repository), hub_config="small")
    assert sorted(texts(tmp_path / "a")) == sorted(TEXTS)
    run(tmp_path / "b", input=str(repository), hub_config="small", hub_split="test")
    assert sorted(texts(tmp_path / "b")) == sorted(OTHERS)
    run(tmp_path / "c", input=str(repository / "large"))  # a folder of files
    assert sorted(texts(tmp_path / "c")) == sorted(OTHERS)
    (repository / "small" / "train-0.parquet").write_bytes(b"more")
    with pytest.raises(DataError, match="prepared otherwise"):
        run(tmp_path / "a", input=str(repository), hub_config="small")


def test_a_download_of_one_configuration_does_not_mix_its_splits(repository, tmp_path, texts):
    head = CONFIGS.partition("- config_name: large")[0] + "---\n"
    (repository / "README.md").write_text(head)
    run(tmp_path / "a", input=str(repository))
    assert sorted(texts(tmp_path / "a")) == sorted(TEXTS)
    (repository / "README.md").write_text("---\nconfigs: {\n---\n")
    with pytest.raises(DataError, match="cannot be read as a downloaded data set"):
        run(tmp_path / "c", input=str(repository))


@pytest.mark.parametrize("head", ["# No head", "---\nlicense: mit\n---\n", None])
def test_a_download_whose_card_names_no_files_does_not_mix_its_splits(
    repository, head, tmp_path, texts, capsys
):
    (repository / "README.md").write_text(head) if head else (repository / "README.md").unlink()
    with pytest.raises(DataError, match=r"of the splits test and train, and others, such as large/all-0"):
        run(tmp_path / "a", input=str(repository))
    run(tmp_path / "a", input=f"{repository}/**/*.parquet")  # files that were named
    assert sorted(texts(tmp_path / "a")) == sorted(TEXTS + OTHERS + OTHERS)
    for path in (repository / "large").iterdir():
        path.unlink()
    capsys.readouterr()
    meta = run(tmp_path / "b", input=str(repository))
    assert (
        f"{repository}: reading 2 files of the split train; it has test and train"
        in capsys.readouterr().err
    )
    assert sorted(texts(tmp_path / "b")) == sorted(TEXTS)
    assert (meta["source"]["split"], meta["source"]["number_of_files"]) == ("train", 2)
    run(tmp_path / "c", input=str(repository), hub_split="test")
    assert sorted(texts(tmp_path / "c")) == sorted(OTHERS)
    with pytest.raises(DataError, match=r"no split 'dev': its files are of test and train: .*--hub_split"):
        run(tmp_path / "d", input=str(repository), hub_split="dev")
    with pytest.raises(DataError, match="no configuration"):
        run(tmp_path / "d", input=str(repository), hub_config="small")


@pytest.mark.parametrize(
    ("names", "train"),
    [
        ("train-0.txt train-1.txt test-0.txt", "train-0.txt train-1.txt"),
        ("train/dev_notes.txt validation/a.txt", "train/dev_notes.txt"),
        ("en/Train/a.txt en/dev/a.txt de/train.txt", "de/train.txt en/Train/a.txt"),
        ("stories_training2.txt stories-valid.txt", "stories_training2.txt"),
        ("training/a.txt testing/a.txt eval.txt", "training/a.txt"),
        # one split, or names that only begin so
        ("train.txt more.txt", "more.txt train.txt"),
        ("trains.txt tests.txt latest.txt devil/a.txt", "devil/a.txt latest.txt tests.txt trains.txt"),
        ("train.txt", "train.txt"),
    ],
)
def test_the_split_of_a_name(tmp_path, names, train):
    for name in names.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert sorted(sources.local(str(tmp_path), ["text"]).texts()()) == train.split()


def test_a_file_of_another_split_beside_files_of_none(tmp_path):
    """A test set would be trained on."""
    for name in ("corpus.txt", "test/0.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with pytest.raises(DataError, match=r"of the split test, and others, such as corpus.txt: .*all: '--in"):
        sources.local(str(tmp_path), ["text"])
    assert sources.local(f"{tmp_path}/**/*.txt", ["text"]).about["number_of_files"] == 2


def test_a_folder_with_links_and_hidden_files(tmp_path):
    for name in ("in/a.txt", "in/.ipynb_checkpoints/a.txt", "in/._a.txt", "in/b.TXT", "elsewhere/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "again.txt").symlink_to(tmp_path / "in" / "a.txt")
    both = f"{tmp_path / 'in'},{os.path.relpath(tmp_path / 'in')}"
    assert sorted(sources.local(both, ["text"]).texts()()) == ["elsewhere/c.txt", "in/a.txt", "in/b.TXT"]


def test_a_name_of_the_hub_with_several_configurations(tmp_path, monkeypatch):
    def several(path, **_):
        raise ValueError(
            "Config name is missing.\nPlease pick one among the available configs: ['en', 'fr']\nExample"
        )

    monkeypatch.setattr(datasets, "load_dataset", several)
    with pytest.raises(DataError, match=r"owner/name has several .*--hub_config, of \['en', 'fr'\]"):
        run(tmp_path / "set", input="owner/name")


@pytest.mark.parametrize("name", OF_HUB)
def test_every_script_of_the_hub_reads_what_was_downloaded(name, saved, repository, tmp_path, texts):
    script, keys = OF_HUB[name], {}
    if name != "openwebtext":
        keys = {"max_tokens": 10**6, "hub_config": "small"}
    if name == "fineweb":
        keys |= {"min_tokens": 0, "test_fraction": 0.0}
    kept = range(N)
    if name == "gneissweb":
        rbloom = pytest.importorskip("rbloom")
        bloom = rbloom.Bloom(1000, 1e-9, script.hash_id)
        bloom.update(f"<{i}>" for i in range(0, N, 2))
        bloom.save(str(tmp_path / "x.bloom"))
        keys["bloom"], kept = str(tmp_path / "x.bloom"), range(0, N, 2)
    files = write_parquet(tmp_path, rows())
    given = {"files": ",".join(files), "saved": str(saved), "repository": str(repository)}
    if name == "openwebtext":
        given["repository"] = str(repository / "small" / "train-*")
    for kind, path in given.items():
        out = tmp_path / "sets" / kind
        meta = run(out, script, input=path, **keys)
        expected = [TEXTS[i] for i in kept if kind != "saved" or i != 3]
        assert sorted(texts(out)) == sorted(expected), kind
        assert "hub" not in meta["source"]
        assert meta["source"].get("filter", "").startswith("sha256" if name == "gneissweb" else "")


@pytest.mark.parametrize("name", OF_HUB)
def test_a_data_set_that_cannot_be_had_names_the_option(name, tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    keys = {}
    if name == "gneissweb":
        pytest.importorskip("rbloom")
        monkeypatch.setattr(OF_HUB[name], "load_filter", lambda path: {"not": "empty"})
        keys = {"max_tokens": 1000}
    with pytest.raises(DataError, match=r"no route\n.*--input=PATH"):
        run(tmp_path / "set", OF_HUB[name], **keys)


def test_the_downloads_of_the_docling_mix(tmp_path, texts):
    downloads = tmp_path / "downloads"
    for part in ("python", "c"):
        folder = downloads / "starcoderdata" / part
        folder.mkdir(parents=True)
        write_parquet(folder, {"content": [f"{part} {text}" for text in TEXTS]})
    folder = downloads / "finemath"
    (folder / "small").mkdir(parents=True)
    write_parquet(folder / "small", rows())
    head = "---\nconfigs:\n- config_name: finemath-4plus\n  data_files: small/*.parquet\n"
    head += "- config_name: infiwebmath-4plus\n  data_files: large/*.parquet\n---\n"
    (folder / "README.md").write_text(head)
    keys = {"input": str(downloads), "programming": "python,c", "val_fraction": 0.2, "workers": 1}
    keys |= {"tokenizer": "bytes", "max_tokens": 10**6}
    script = docling_mix.PrepareConfig(out=str(tmp_path / "mix"), sources="starcoder,finemath", **keys)
    docling_mix.main(script)
    found = texts(tmp_path / "mix" / "starcoder" / "bytes")
    assert sorted(found) == sorted(f"{part} {text}" for part in ("python", "c") for text in TEXTS)
    assert sorted(texts(tmp_path / "mix" / "finemath" / "bytes")) == sorted(TEXTS)
    with pytest.raises(DataError, match=r"no folder cosmopedia, the download of HuggingFaceTB/cosmopedia"):
        docling_mix.main(docling_mix.PrepareConfig(out=str(tmp_path / "mix"), sources="cosmopedia", **keys))


def test_a_damaged_file_is_no_broken_connection(tmp_path, capsys):
    """It is not waited for."""
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: one\n  data_files: '*.parquet'\n---\n"
    )
    write_parquet(tmp_path, rows())
    second = tmp_path / "001_00000.parquet"
    second.write_bytes(second.read_bytes()[:-100])
    with pytest.raises(DataError, match="failed after"):
        run(tmp_path / "out", input=str(tmp_path))
    assert "to go on in" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", ["a.txt", "a.jsonl.gz", "a.csv", "a.parquet", "small", "", "t/tokenizer.json"]
)
def test_pointers_of_git_lfs_are_no_data(repository, tmp_path, given):
    """What a clone holds without Git LFS, as files, in folders and in the whole repository."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    path = repository / (given if "." in given else "small/train-0.parquet")
    path.parent.mkdir(exist_ok=True)
    path.write_text(pointer)
    keys = {"input": str(repository / given), "hub_config": None if given else "small"}
    if path.name == "tokenizer.json":
        keys = {"input": str(repository / "small" / "*"), "tokenizer": str(path)}
    with pytest.raises(DataError, match=rf"{path.name}.* is a Git LFS pointer.*: run git lfs pull"):
        run(tmp_path / "set", **keys)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("keys", [{"hub_split": "test"}, {"hub_config": "en"}])
def test_plain_files_have_no_splits(tmp_path, keys):
    """A key without effect would mix what it was to keep apart."""
    (tmp_path / "test.txt").write_text("a text")
    with pytest.raises(DataError, match="plain files, which have no configuration and no split"):
        run(tmp_path / "out", input=str(tmp_path / "test.txt"), **keys)
    assert not (tmp_path / "out").exists()
