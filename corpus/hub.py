"""Documents of data sets of the Hugging Face hub, as streams that survive a bad connection.

A stream continues where it stopped. After a network failure it does so by itself. After a kill,
`corpus.binary.prepare` gives it the stored state.
"""

from host.packages import install

import gc
import re
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from corpus import DataError

WAITS = (5, 10, 20, 40, 60)  # seconds before each new attempt; they start over after any progress
PARQUET = "refs/convert/parquet"  # the branch with the hub's own conversion


class NotServedError(Exception):
    """The hub answers but does not have the data set in this form."""


@dataclass(frozen=True)
class Form:
    """A form that a data set may have on the hub. `open()` returns a datasets.IterableDataset."""

    name: str
    open: Callable[[], Any]
    warning: str = ""


def library():
    """Imports the package `datasets`, which data sets of the hub need, downloaded ones too."""
    try:
        import datasets
    except ImportError:
        needed = "data sets of the hub, and folders of save_to_disk, need the package `datasets`"
        raise DataError(f"{needed}: {install('datasets')}") from None
    return datasets


def plain(name: str, config: str | None, split: str, folder: str | None = None) -> Form:
    """The data set itself, or a folder of it. A loading script is never run."""
    keys = {"name": config, "split": split, "streaming": True}
    if folder is not None:
        keys["data_dir"] = folder

    def load():
        try:
            return library().load_dataset(name, **keys)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            raise NotServedError("it is a loading script, which is never run") from None
        except ValueError as error:
            if "Config name is missing" not in str(error):
                raise
            found = re.search(r"\[.*?\]", str(error), re.DOTALL)
            raise DataError(
                f"the data set {name} has several configurations: choose one with --hub_config"
                + (f", of {found[0]}" if found else "")
            ) from None

    return Form("the data set under its name", load)


def parquet(name: str, config: str | None, split: str, whole: bool = False) -> Form:
    """The hub's own Parquet conversion. whole: refuse a conversion of the data set's first part only."""

    def load():
        datasets = library()
        keys = {"name": config, "split": split, "streaming": True}
        try:
            rows = datasets.load_dataset(name, revision=PARQUET, **keys)
            if whole and any("/partial-" in path for path in files(name, PARQUET)):
                raise NotServedError("it holds the first part only")
        except (FileNotFoundError, ValueError) as error:
            raise NotServedError(_reason(error)) from None
        return rows

    warning = "" if whole else "it may hold the first part only: compare the number of documents"
    return Form("the hub's own conversion to Parquet", load, warning)


def files(name: str, revision: str | None = None) -> list[str]:
    """The paths of all files of a data set."""
    import huggingface_hub  # comes with `datasets`

    return huggingface_hub.HfApi().list_repo_files(name, repo_type="dataset", revision=revision)


class Stream:
    """The documents of a data set, from the first of `forms` that the hub has.

    `document(row, where)` turns a row into a document, or None to leave it out. `shown` is the name of the
    data set in messages, and `hint` the last line of error messages. `state`: the state of a stream to
    continue from. `again`: whether what breaks off is tried again, as a connection.
    """

    def __init__(
        self,
        forms: list[Form],
        document: Callable[[dict, str], str | None],
        shown: str,
        hint: str,
        state: dict | None = None,
        again: bool = True,
    ):
        self._forms, self._waits = forms, WAITS if again else ()
        self._document = document
        self._shown = shown
        self._hint = hint
        self._form = state["form"] if state else None
        self._rows_read = state["rows"] if state else 0
        self._position = state["position"] if state else None
        self._rows = None
        self._iterator = None

    def state(self) -> dict:
        position = self._rows.state_dict() if self._rows is not None else self._position
        return {"form": self._form, "rows": self._rows_read, "position": position}

    def about(self) -> dict:
        """The form in which the data set was read, for meta.json."""
        return {"read_as": self._form}

    def __iter__(self) -> Iterator[str | None]:
        return self

    def __next__(self) -> str | None:
        if self._rows is None:
            self._open()
        failures = 0
        while True:
            try:
                if self._iterator is None:
                    if self._position is not None:
                        self._rows.load_state_dict(self._position)
                    self._iterator = iter(self._rows)
                row = next(self._iterator)
                break
            except StopIteration:
                raise
            except Exception as error:  # every layer of the library has its own network errors
                # Before the first row there is nothing to resume, and the library has retried already.
                if not self._rows_read or failures == len(self._waits):
                    raise self._failure(error) from None
                if not failures:
                    self._position = self._rows.state_dict()
                self._iterator = None
                wait = self._waits[failures]
                failures += 1
                print(
                    f"{self._shown} broke off after {self._rows_read:,} rows ({_reason(error)}); "
                    f"attempt {failures} of {len(self._waits)} to go on in {wait} s",
                    file=sys.stderr,
                )
                time.sleep(wait)
        self._rows_read += 1
        return self._document(row, f"{self._shown}, row {self._rows_read}")

    def _open(self) -> None:
        refused = []
        for form in self._forms:
            if self._form not in (None, form.name):
                continue
            try:
                self._rows = form.open()
            except NotServedError as error:
                refused.append(f"{form.name}: {error}")
                continue
            except DataError:
                raise
            except Exception as error:  # the library has its own errors for network, name, config and split
                raise self._failure(error) from None
            if refused:
                print(f"{self._shown}: not {'; not '.join(refused)}", file=sys.stderr)
            warning = f"; {form.warning}" if form.warning else ""
            print(f"{self._shown}: reading {form.name}{warning}", file=sys.stderr)
            self._form = form.name
            return
        raise DataError("\n".join([f"{self._shown} cannot be had:", *refused, self._hint]))

    def _failure(self, error: Exception) -> DataError:
        # pyarrow's threads may read ahead for what these frames hold. When the process ends meanwhile, they
        # abort it (apache/arrow#45214).
        traceback.clear_frames(error.__traceback__)
        self._iterator = None
        gc.collect()
        return DataError(
            f"{self._shown} failed after {self._rows_read:,} rows: {_reason(error)}\n{self._hint}"
        )


class InTurn:
    """The documents of several streams, one of each in turn until all are read.

    streams: functions that open a stream, given a state or None. state: that of another InTurn to continue
    from.
    """

    def __init__(self, streams: list[Callable[[dict | None], Stream]], state: dict | None = None):
        states = state["streams"] if state else [None] * len(streams)
        self._streams = [stream(own) for stream, own in zip(streams, states, strict=True)]
        self._left = deque(state["left"] if state else range(len(streams)))  # the first one is read next

    def state(self) -> dict:
        return {"streams": [stream.state() for stream in self._streams], "left": list(self._left)}

    def about(self) -> dict:
        return self._streams[0].about()

    def __iter__(self) -> Iterator[str | None]:
        return self

    def __next__(self) -> str | None:
        while self._left:
            try:
                document = next(self._streams[self._left[0]])
            except StopIteration:
                self._left.popleft()
                continue
            self._left.rotate(-1)
            return document
        raise StopIteration


def _reason(error: Exception) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
