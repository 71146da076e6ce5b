"""Where a prepare script reads its rows: the hub, or what was downloaded of it and is given as --input.

--input takes files, folders and globs (corpus/files.py), a folder that `save_to_disk` of the package
`datasets` wrote, or a repository as `hf download` leaves it.
"""

from host.disk import open_to_read, read_json, refuse_unreadable

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corpus import DataError, files, hub
from corpus.compressed import MAX_EXPANSION
from reports.plural import counted

HINT = (
    "The hub needs network: run the same command again when it is back. What was downloaded elsewhere is "
    "given as --input=PATH: files, or a folder of `hf download` or of save_to_disk"
)
# the word of a file's or folder's name, and the split that it means on the hub
SPLIT_NAMES = {"train": "train", "training": "train"}
SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
SPLIT_NAMES |= dict.fromkeys(("test", "testing", "eval", "evaluation"), "test")
SPLIT_NAME = re.compile(rf"(?<![a-z])({'|'.join(SPLIT_NAMES)})(?![a-z])", re.IGNORECASE)


@dataclass(kw_only=True)
class Keys:
    """The key of the scripts that read a data set of the hub."""

    input: str | None = None  # read this in the place of the hub: files, or a folder of `hf download`


@dataclass
class Source:
    """Rows, and their origin `about` for meta.json.

    read(document, state) starts the documents that document(row, where) makes of the rows, None for a row
    that it leaves out. state: of an earlier iterator, to continue from; None: from the beginning.
    """

    read: Callable[[Callable[[dict, str], str | None], dict | None], Iterator[str | None]]
    about: dict

    def documents(self, document: Callable[[dict, str], str | None]) -> Callable[..., Iterator[str | None]]:
        """What `binary.prepare` takes."""
        return lambda state=None: self.read(document, state)

    def texts(self, field: str = "text") -> Callable[..., Iterator[str | None]]:
        """`documents` that are the text of a column."""
        return self.documents(lambda row, where: files.text_of(row, field, where))


def first(documents: Callable[..., Iterator], count: int) -> Callable[..., Iterator]:
    """The first documents alone, which go on from a state as all of them do."""
    return lambda state=None: _First(documents, count, state)


class _First:
    def __init__(self, documents, count: int, state: dict | None):
        self.read, self._count = (state["read"], count) if state else (0, count)
        self._documents = documents(state["documents"]) if state else documents()
        if hasattr(self._documents, "state"):
            self.state = lambda: {"read": self.read, "documents": self._documents.state()}
        if hasattr(self._documents, "about"):
            self.about = self._documents.about

    def __iter__(self):
        return self

    def __next__(self) -> str | None:
        if self.read >= self._count:
            raise StopIteration
        document = next(self._documents)
        self.read += 1
        return document


def opened(
    given: str | None,
    name: str,
    config: str | None,
    fields: list[str],
    forms: list[hub.Form] | None = None,
) -> Source:
    """The training split of the hub's data set `name`, or `local(given)`. Raises DataError.

    forms: that it may have on the hub; None: the data set itself.
    """
    if given is not None:
        return local(given, fields, config)
    forms = forms or [hub.plain(name, config, "train")]
    shown = f"the data set {name}" + (f" (config {config})" if config else "")
    about = {"hub": name, **({"config": config} if config else {}), "split": "train"}
    return Source(lambda document, state: hub.Stream(forms, document, shown, HINT, state), about)


def local(
    given: str,
    fields: list[str],
    config: str | None = None,
    split: str = "train",
    separator: str | None = None,
    max_expansion: int = MAX_EXPANSION,
    chosen_by: tuple[str, str] = ("--hub_config", "--hub_split"),
) -> Source:
    """The rows of `given`: names of files, folders and globs with commas between them, or one folder of
    `save_to_disk` or `hf download`.

    fields: the columns that are needed. config, split: of such a folder, or of one whose files are named by
    their split. separator, max_expansion: see `files.rows`. chosen_by: what chooses both, for messages.
    Raises DataError.
    """
    names = [name.strip() for name in given.split(",") if name.strip()]
    if len(names) == 1:
        folder = Path(names[0]).expanduser()
        for file in ("state.json", "dataset_dict.json"):
            if (folder / file).is_file():
                return _saved(folder, split, chosen_by[1])
        if _is_repository(folder):
            return _repository(folder, config, split, chosen_by[0])
    paths, about = files.find(names), {}
    if len(names) == 1 and folder.is_dir() and (chosen := _of_split(folder, paths, split, chosen_by[1])):
        paths, about = chosen, {"split": split}
    digest = hashlib.sha256()
    for path in paths:
        with files.readable(path), open_to_read(path) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    about |= {
        "files": [path.name for path in paths[:20]],
        "number_of_files": len(paths),
        "bytes_of_files": sum(path.stat().st_size for path in paths),
        "sha256": digest.hexdigest(),
    }

    def read(document, state):
        return (document(row, where) for row, where in files.rows(paths, fields, separator, max_expansion))

    return Source(read, about)


def _of_split(folder: Path, paths: list[Path], split: str, key: str) -> list[Path] | None:
    """Those of the folder's files that belong to the split; None where their names show no other split, or
    one for all.

    As on the hub, a folder of that name or a word in a file's name tells: test/0.txt, en_train-1.parquet.
    Raises DataError where there is no such split, or a file of none.
    """
    found = {}
    for path in paths:
        *above, name = path.relative_to(folder).parts
        words = [SPLIT_NAME.fullmatch(part) for part in reversed(above)] + [SPLIT_NAME.search(name)]
        word = next((word[0].lower() for word in words if word), None)
        found.setdefault(SPLIT_NAMES.get(word), []).append(path)
    others, named = found.pop(None, []), " and ".join(sorted(found))
    if not found.keys() - {split} or (len(found) == 1 and not others):
        return None
    if others:
        raise DataError(
            f"{folder} has files of the {'splits' if len(found) > 1 else 'split'} {named}, and others, "
            f"such as {others[0].relative_to(folder)}: name those to read, with commas or as in "
            f"'--input={folder}/**/train*'; all: '--input={folder}/**/*{others[0].suffix}'"
        )
    if split not in found:
        raise DataError(f"{folder} has no split {split!r}: its files are of {named}: choose with {key}")
    chosen = counted(len(found[split]), "file")
    print(f"{folder}: reading {chosen} of the split {split}; it has {named}", file=sys.stderr)
    return found[split]


def _saved(folder: Path, split: str, key: str) -> Source:
    """A Dataset or a DatasetDict that was saved to disk."""
    part = folder
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json", DataError).get("splits")
        if not isinstance(splits, list) or split not in splits:
            raise DataError(f"{folder} has no split {split!r}: it has {splits}: choose with {key}")
        part = folder / split
    content = read_json(part / "state.json", DataError)
    form = hub.Form(
        "a folder of save_to_disk",
        lambda: hub.library().load_from_disk(str(part)).to_iterable_dataset(),
    )
    about = {"saved": part.name, "fingerprint": content.get("_fingerprint")}
    return _stream(part, form, about)


def _is_repository(folder: Path) -> bool:
    """Whether the head of a folder's README.md describes a data set of the hub."""
    page = folder / "README.md"
    if not page.is_file():
        return False
    with files.readable(page):
        head = re.match(r"\ufeff?---\s*\n(.*?)\n---", page.read_text(encoding="utf-8"), re.DOTALL)
    return bool(head and re.search(r"^(configs|dataset_info):", head[1], re.MULTILINE))


def _repository(folder: Path, config: str | None, split: str, key: str) -> Source:
    names = sorted(path for path in folder.rglob("*") if path.is_file() and files.format_of(path))
    for path in names:
        with files.readable(path):
            refuse_unreadable(path)
    try:
        configs = hub.library().get_dataset_config_names(str(folder))
    except DataError:
        raise
    except Exception as error:  # the library has its own errors for what README.md says
        raise DataError(f"{folder} cannot be read as a downloaded data set: {error}") from None
    if config is None and len(configs) > 1:
        raise DataError(
            f"{folder} is a downloaded data set with several configurations: choose one with {key}, "
            f"of {', '.join(configs)}. ({folder}/FOLDER reads the files of one folder)"
        )
    if config is not None and config not in configs:
        raise DataError(f"{folder} has no configuration {config!r}: it has {', '.join(configs)}")
    listed = "".join(f"{path.relative_to(folder)} {path.stat().st_size}\n" for path in names)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    about = {
        "repository": folder.resolve().name,
        "config": config,
        "split": split,
        "sha256_of_list": digest,
    }
    return _stream(folder, hub.plain(str(folder), config, split), about)


def _stream(folder: Path, form: hub.Form, about: dict) -> Source:
    hint = "The folder was read with the package `datasets`. --input also takes its files"
    return Source(
        lambda document, state: hub.Stream([form], document, str(folder), hint, state, False), about
    )
