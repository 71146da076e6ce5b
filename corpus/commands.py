"""The commands that prepare data sets: what was typed, for meta.json, and what to type, for messages."""

import os
import re
import shlex
import sys
from pathlib import Path

from corpus import DataError, files
from corpus.tokenizer_registry import parse_tokenizer_name

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "prepare.py"
FILES = "FILES"  # in the place of texts that are not known
OF_PAIRS = re.compile(r"en_([a-z]{2,3}(?:-[a-z]+)?)_")  # en_fr_bpe8192: pairs of English and French
WITHOUT_TEXT = ("recall",)  # data sets whose scripts take no tokenizer
OF_FILES = ("text", "pairs")  # whose scripts read your own
OF_ROWS = re.compile(r"\.(jsonl?|csv|parquet)(\.|$)")  # files of many documents, also compressed


def typed() -> list[str] | None:
    """The command of this process if it is a prepare script: its path in the repository, its arguments."""
    path = Path(os.path.abspath(sys.argv[0]))
    if path.name != SCRIPT or not path.is_relative_to(ROOT):
        return None
    return [str(path.relative_to(ROOT)), *sys.argv[1:]]


def missing(folder: Path, tokenizer: str | None = None, kind: str = "text") -> str:
    """That a folder is not prepared, and the command that prepares it; or that it is a file.

    kind: of data/, whose script prepares folders that no other script is known for.
    tokenizer: the one that it must have; None: that of the folder's name (gpt2, bytes, bpe4096), if any.
    """
    if folder.is_file():
        return _of_file(folder, tokenizer)
    if folder.is_dir() and any(files.format_of(path) for path in folder.iterdir()):
        what = f"{folder} is a folder of texts, not of a prepared data set; prepare them with"
        return _of_texts(what, str(folder), folder.name, [], tokenizer)
    if len(folder.parts) == 2 and not folder.parent.exists():  # the hub's OWNER/NAME
        what = f"{folder} is no folder here; if the Hugging Face hub has that data set, prepare it with"
        return _of_texts(what, str(folder), folder.name, [], tokenizer)
    own = ROOT / "data" / folder.name
    if (own / SCRIPT).is_file() and folder.absolute() in (own, Path.cwd() / folder.name):
        return _of_a_script(folder, own)
    script, options = _script(folder, kind=kind)
    tokenizer = None if script.parent.name in WITHOUT_TEXT else tokenizer or _of_name(folder.name)
    lines = [f"{folder} is not a prepared data set (no meta.json); prepare it with"]
    lines.append(typeable(script, [*options, *([f"--tokenizer={tokenizer}"] if tokenizer else [])]))
    if f"--input={FILES}" in options:
        lines.append(f"({FILES}: your texts)")
    if not tokenizer:
        lines.append("(and with the options that the head of the config file names, if any)")
    return "\n  ".join(lines)


def _of_file(file: Path, tokenizer: str | None) -> str:
    """That a file is no data set: the folder that was meant, or how to prepare the text in the file."""
    if (file.parent / "meta.json").is_file():
        return f"{file} is a file of a prepared data set: give {shlex.join([f'--dataset={file.parent}'])}"
    split = ["--split=contiguous", "--val_fraction=0.1"]  # of one document
    what = f"{file} is a file, not the folder of a prepared data set; prepare its text with"
    name = file.name.partition(".")[0]
    return _of_texts(what, str(file), name, [] if OF_ROWS.search(file.name) else split, tokenizer)


def _of_texts(what: str, given: str, name: str, options: list[str], tokenizer: str | None) -> str:
    """`what`, the command that prepares the texts `given` in a new folder of data/text, how to go on."""
    name = re.sub(r"[^\w.-]+", "_", name).strip("_") or "mine"
    out, number = ROOT / "data" / "text" / name, 1
    while out.exists():
        number += 1
        out = out.with_name(f"{name}_{number}")
    shown = _shown(out)
    options = [f"--input={given}", f"--out={shown}", *options]
    options += [f"--tokenizer={tokenizer}"] if tokenizer else []
    command = typeable(ROOT / "data" / "text" / SCRIPT, options)
    then = f"then train with {shlex.join([f'--dataset={shown}'])}"
    return f"{what}\n  {command}\n{then}"


def _of_a_script(folder: Path, own: Path) -> str:
    """That data/NAME, or NAME alone, holds data sets and is none."""
    if prepared := [shlex.join([f"--dataset={_shown(file.parent)}"]) for file in own.glob("*/meta.json")]:
        return f"{folder} is no data set itself: give {' or '.join(sorted(prepared))}"
    options = [f"--input={FILES}", f"--out={_shown(own / 'mine')}"] if own.name in OF_FILES else []
    command = typeable(own / SCRIPT, options)
    return f"{folder} is no data set itself, and none is prepared there; prepare one with\n  {command}"


def with_tokenizer(folder: Path, meta: dict, tokenizer: str) -> tuple[Path, list[str]]:
    """(a new folder, the lines that say how to prepare the texts of `folder` there with this --tokenizer).

    The command is the one that meta.json records, with another tokenizer and folder. For a data set that
    records none, it is as much as is known.
    """
    out, remarks = _new_folder(folder, tokenizer), []
    words = meta.get("command")
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        script = ROOT / words[0]
        options = [word for word in words[1:] if not re.match(r"--(out|tokenizer|end_token)=", word)]
        if _of_several(folder):
            options = [word for word in options if not word.startswith("--sources=")]
            options += _of_source(folder)
        else:
            options.append(f"--out={out}")
    else:
        script, options = _script(out, meta)
        if f"--input={FILES}" in options:
            remarks.append(f"({FILES}: the texts of {folder})")
        remarks.append(f"(and with the other options that {folder} was prepared with, if any)")
    return out, [typeable(script, [*options, f"--tokenizer={tokenizer}"]), *remarks]


def _of_source(folder: Path) -> list[str]:
    """A script of several sources is given the folder of all of them, and names the last one itself."""
    return [f"--out={folder.parent.parent}", f"--sources={folder.parent.name}"]


def _script(folder: Path, meta: dict | None = None, kind: str = "text") -> tuple[Path, list[str]]:
    """The script that prepares this folder, and its options: data/NAME/prepare.py for data/NAME/X.

    data/NAME/SOURCE/X belongs to a script that prepares several sources.
    """
    if _of_several(folder):
        return folder.parent.parent / SCRIPT, _of_source(folder)
    own = folder.parent / SCRIPT
    own = own if own.is_file() else ROOT / "data" / kind / SCRIPT
    texts = ROOT / "data" / "text" / SCRIPT
    if not own.samefile(texts):
        options = [f"--out={folder}"]
        if own.samefile(ROOT / "data" / "pairs" / SCRIPT):
            options.insert(0, f"--input={FILES}")
        elif found := OF_PAIRS.match(folder.name):
            options.insert(0, f"--language={found[1]}")
        return own, options
    source = (meta or {}).get("source", {})
    options = [f"--input={source.get('hub', FILES)}"]
    for key, name in (("hub_config", "config"), ("hub_split", "split")):
        if "hub" in source and source.get(name):
            options.append(f"--{key}={source[name]}")
    options += [f"--{key}={source[key]}" for key in ("field", "max_docs") if source.get(key)]
    if source.get("separator"):
        separator = source["separator"]
        for meant, written in (("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            separator = separator.replace(meant, written)
        options.append(f"--separator={separator}")
    options += ["--split=contiguous"] if source.get("contiguous") else []
    options += [f"--val_fraction={meta['val_fraction']}"] if meta and "val_fraction" in meta else []
    return texts, [*options, f"--out={folder}"]


def _of_several(folder: Path) -> bool:
    return not (folder.parent / SCRIPT).is_file() and (folder.parent.parent / SCRIPT).is_file()


def typeable(script: Path, options: list[str]) -> str:
    """The command of a script of this repository, for a shell in the current folder."""
    return shlex.join(["python", _shown(script), *options])


def _shown(path: Path) -> str:
    """A path of this repository as it can be typed in the current folder."""
    shown = os.path.relpath(path)
    return str(path) if shown.startswith("..") else shown


def _of_name(name: str) -> str | None:
    """The --tokenizer that a folder's name promises; None: none."""
    name = OF_PAIRS.sub("", name, count=1)
    if found := re.fullmatch(r"bpe(\d+)", name):
        name = f"bpe:{found[1]}"
    try:
        _, argument = parse_tokenizer_name(name)
    except DataError:
        return None
    return None if isinstance(argument, Path) else name


def _label(tokenizer: str) -> str:
    """The name for folders with a --tokenizer: a tokenizer.json out of data/x/bpe4096 is called bpe4096."""
    return Path(tokenizer).resolve().parent.name if tokenizer.endswith(".json") else tokenizer


def _new_folder(folder: Path, tokenizer: str) -> Path:
    """data/x/gpt2 -> data/x/bpe4096, data/text/mine -> data/text/mine_bpe4096."""
    label = _label(tokenizer)
    named = folder.with_name(label if _of_name(folder.name) else f"{folder.name}_{label}")
    if _of_several(folder):
        return folder.with_name(label)  # as the script names it
    out, number = named, 1
    while out.exists():
        number += 1
        out = named.with_name(f"{named.name}_{number}")
    return out
