"""Commands in messages can be typed: how to prepare a missing data set, or one with another tokenizer."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import export
from configurator import resolve
from corpus import DataError, binary, commands
from corpus.loader import Dataset
from tests.conftest import documents
from tests.data.prepare_scripts import load_script
from train import main

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.parent.name for path in (ROOT / "data").glob("*/prepare.py"))
CONFIG = str(ROOT / "config" / "finetune_text.py")


def read(command):
    """The configuration that a printed command gives to its script; raises ConfigError."""
    python, script, *options = shlex.split(command)
    assert python == "python"
    return resolve(load_script(Path(script).parent.name).PrepareConfig, options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("folder", "tokenizer"), [("gpt2", "gpt2"), ("bytes", "bytes"), ("mine", None)])
def test_a_missing_data_set_of_every_script(monkeypatch, name, folder, tokenizer):
    monkeypatch.chdir(ROOT)
    path = Path("data", name, *(["dclm2"] if name == "docling_mix" else []), folder)
    first, command, *remarks = (line.strip() for line in commands.missing(path).splitlines())
    assert first == f"{path} is not a prepared data set (no meta.json); prepare it with"
    config = read(command)
    assert config.out == (str(path) if name != "docling_mix" else "data/docling_mix")
    if name in commands.WITHOUT_TEXT:
        tokenizer = None
    if tokenizer:
        assert config.tokenizer == tokenizer
    assert remarks == [
        *(["(FILES: your texts)"] if name in ("text", "pairs") else []),
        *(
            ["(and with the options that the head of the config file names, if any)"]
            if not tokenizer
            else []
        ),
    ]


@pytest.mark.parametrize("kind", ["pairs", "recall"])
def test_a_missing_data_set_of_another_kind(tmp_path, kind):
    command = commands.missing(tmp_path / "none", kind=kind).splitlines()[1]
    assert f"data/{kind}/prepare.py" in command
    assert read(command.replace(str(ROOT / "data"), "data")).out == str(tmp_path / "none")


def test_texts_in_the_place_of_a_data_set(monkeypatch, tmp_path):
    """A folder of files, and a name of the hub."""
    (tmp_path / "my books").mkdir()
    (tmp_path / "my books" / "a.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    for name, out in (("my books", "my_books"), ("owner/TinyStories", "TinyStories")):
        _, command, then = commands.missing(Path(name), "bpe:512").splitlines()
        config = read(command)
        assert (config.input, config.tokenizer) == (name, "bpe:512")
        assert config.out == str(ROOT / "data" / "text" / out)
        assert then == f"then train with --dataset={config.out}"


@pytest.mark.parametrize("named", ["openwebtext", "data/openwebtext", "data/text"])
def test_the_folder_of_a_script(monkeypatch, tmp_path, named):
    """It holds data sets: the prepared ones, or the command for one."""
    monkeypatch.chdir(ROOT)
    said = commands.missing(Path(named)).splitlines()
    config = read(said[1].replace("openwebtext/prepare.py", "openwebtext/prepare.py --tokenizer=bytes"))
    assert Path(config.out).parent == Path("data", Path(named).name)
    (tmp_path / "data/mine/gpt2").mkdir(parents=True)
    for file in ("prepare.py", "gpt2/meta.json"):
        (tmp_path / "data/mine" / file).write_text("")
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert commands.missing(Path("mine")).endswith("give --dataset=data/mine/gpt2")


@pytest.mark.parametrize("name", ["bible", "libreoffice", "manpages", "electron"])
def test_the_name_of_a_folder_of_pairs_promises_its_language(monkeypatch, name):
    monkeypatch.chdir(ROOT)
    path = Path("data", name, "en_de_bpe512")
    config = read(commands.missing(path).splitlines()[1])
    assert (config.out, config.language, config.tokenizer) == (str(path), "de", "bpe:512")
    assert load_script(name).PrepareConfig(language="de", tokenizer="bpe:512").out == str(path)


def test_the_name_of_a_folder_promises_its_tokenizer(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert read(commands.missing(Path("data/sotu/bpe512")).splitlines()[1]).tokenizer == "bpe:512"
    with pytest.raises(DataError, match="is not a prepared data set") as caught:
        Dataset(tmp_path / "my texts", "train", 8)
    config = read(str(caught.value).splitlines()[1])
    assert (config.out, config.input) == (str(tmp_path / "my texts"), "FILES")


def test_a_file_of_a_prepared_data_set(dataset, arguments):
    for file in ("train.bin", "meta.json"):
        keys = [one for one in arguments if not one.startswith("--dataset")]
        with pytest.raises(SystemExit) as stop:
            main([*keys, f"--dataset={dataset / file}"])
        told = f"{dataset / file} is a file of a prepared data set: give --dataset={dataset}"
        assert str(stop.value).endswith(told)


def test_a_text_file_in_the_place_of_a_data_set(arguments, tmp_path, monkeypatch):
    """The printed command is as it must be typed: the file is one document, whose end is validation."""
    monkeypatch.chdir(tmp_path)
    Path("my book.txt").write_text("word " * 4000)
    keys = [one for one in arguments if not one.startswith("--dataset")]
    with pytest.raises(SystemExit) as stop:
        main([*keys, "--dataset=my book.txt"])
    first, command, last = str(stop.value).splitlines()
    assert first.endswith(
        "my book.txt is a file, not the folder of a prepared data set; prepare its text with"
    )
    config = read(command)
    out = str(ROOT / "data" / "text" / "my_book")
    assert (config.input, config.out, config.split) == ("my book.txt", out, "contiguous")
    assert shlex.split(last)[3:] == [f"--dataset={out}"]
    script = load_script("text")
    config.out, config.tokenizer = "prepared", "bytes"
    script.main(config)
    assert Dataset("prepared", "val", 8).n_windows > 1
    rows = Path("rows.jsonl.gz")
    rows.touch()
    assert "--split" not in commands.missing(rows, "bytes")
    assert read(commands.missing(rows, "bytes").splitlines()[1]).tokenizer == "bytes"


def prepare_text(monkeypatch, folder, *options):
    """data/text/prepare.py as if it was typed, on texts of its own; returns the folder."""
    path = folder.with_suffix(".jsonl")
    path.write_text("".join(json.dumps({"line": text}) + "\n" for text in documents()))
    argv = [
        f"--input={path}",
        "--field=line",
        "--val_fraction=0.2",
        "--workers=1",
        f"--out={folder}",
        *options,
    ]
    monkeypatch.setattr(sys, "argv", [str(ROOT / "data" / "text" / "prepare.py"), *argv])
    script = load_script("text")
    script.main(resolve(script.PrepareConfig, argv))
    return folder


def refused(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([CONFIG, "--device=cpu", "--compile=False", "--eval_tokens=640", "--max_iters=16", *arguments])
    return str(stop.value)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:264"])
@pytest.mark.parametrize("kept", [True, False])
def test_the_printed_command_prepares_the_data_with_the_tokenizer_of_the_run(
    arguments, tmp_path, monkeypatch, tokenizer, kept
):
    """Data with more tokens, which does not fit, and with fewer: pasted as printed, then trained on."""
    monkeypatch.chdir(ROOT)
    own = tmp_path / "own"
    binary.prepare(documents, {"made": "up"}, "bpe:260", own, 0.1, workers=1)
    keys = [one for one in arguments if not one.startswith("--dataset")]
    main([*keys, "--max_iters=2", f"--dataset={own}", f"--out_dir={tmp_path / 'run'}"])
    other = prepare_text(monkeypatch, tmp_path / "other texts", f"--tokenizer={tokenizer}")
    given = f"--init_from={tmp_path / 'run'}"
    if not kept:
        own.rename(tmp_path / "gone")
        monkeypatch.chdir(tmp_path)
    message = refused(given, f"--dataset={other}", f"--out_dir={tmp_path / 'tuned'}")
    assert "another vocabulary (tokenizer bpe:260)" in message
    assert "vocab_size" not in message
    *printed, last = message.splitlines()[1:]
    assert len(printed) == (1 if kept else 2)
    if not kept:
        monkeypatch.setattr(sys, "argv", ["export.py"])
        script, *words = shlex.split(printed[0])[1:]
        assert Path(script).samefile(ROOT / "export.py")
        export.main(words)
    python, *command = shlex.split(printed[-1])
    assert python == "python"
    subprocess.run([sys.executable, *command], check=True)
    (dataset,) = shlex.split(last.removeprefix("then train with "))
    assert dataset == f"--dataset={other}_{'own' if kept else 'run'}"
    main([CONFIG, "--device=cpu", "--compile=False", "--eval_tokens=640", "--max_iters=16",
          given, dataset, f"--out_dir={tmp_path / 'tuned'}"])  # fmt: skip
    metas = [json.loads((Path(folder) / "meta.json").read_text()) for folder in (other, dataset[10:])]
    same = ("source", "val_fraction", "documents_read")
    assert [metas[0][key] for key in same] == [metas[1][key] for key in same]


def test_a_missing_data_set_of_a_run_that_starts_from_another(dataset, run, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder, _ = run("run", "--max_iters=2")
    message = refused(f"--init_from={folder}", "--dataset=data/wordnet/absent", f"--out_dir={tmp_path}/x")
    assert "python data/wordnet/prepare.py --out=data/wordnet/absent --tokenizer=bytes" in message


def test_without_a_recorded_command(tmp_path, monkeypatch):
    """As much as meta.json tells of a data set."""
    monkeypatch.chdir(ROOT)
    source = {"hub": "owner/name", "config": "en", "split": "train", "field": "content"}
    source["separator"] = "\n\r\t--"
    meta = {"source": {**source, "contiguous": True}, "val_fraction": 0.1}
    out, (command, remark) = commands.with_tokenizer(Path("data/text/absent"), meta, "gpt2")
    assert out == Path("data/text/absent_gpt2")
    config = read(command)
    assert (config.input, config.hub_config, config.field) == ("owner/name", "en", "content")
    assert config.separator == r"\n\r\t--"  # as the script takes it
    assert (config.split, config.val_fraction, config.out) == ("contiguous", 0.1, str(out))
    assert "the other options that data/text/absent was prepared with" in remark
    out, (command, *_) = commands.with_tokenizer(
        Path("data/wordnet/bytes"), {}, "data/sotu/bpe9/tokenizer.json"
    )
    assert out == Path("data/wordnet/bpe9")
    words = shlex.split(command)[1:]
    assert words == ["data/wordnet/prepare.py", f"--out={out}", "--tokenizer=data/sotu/bpe9/tokenizer.json"]


def test_of_several_sources_the_one_that_is_meant(monkeypatch):
    monkeypatch.chdir(ROOT)
    meta = {"command": ["data/docling_mix/prepare.py", "--sources=dclm2,cosmopedia", "--max_tokens=99"]}
    out, (command,) = commands.with_tokenizer(Path("data/docling_mix/dclm2/gpt2"), meta, "bytes")
    assert out == Path("data/docling_mix/dclm2/bytes")
    config = read(command)
    assert (config.out, config.sources, config.max_tokens) == ("data/docling_mix", "dclm2", 99)
    assert config.tokenizer == "bytes"
