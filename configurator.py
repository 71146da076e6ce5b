"""Config files and `--key=value` overrides -> a checked dataclass.

    python train.py config/demo_dense.py config/size/tiny.py --learning_rate=3e-4 --resume

A config file is a Python file of plain assignments; it runs in a namespace of its own. Files are
applied from left to right, then the overrides from left to right: the last word wins. Where each
argument is a model, `A.py+B.py` stacks files within an argument; elsewhere it is the same as `A.py B.py`.

A file may define `derived(keys) -> dict`, for values that follow from others, such as a warmup that is a
share of max_iters. keys: all that files and overrides name. What it returns wins over files, and overrides
win over it. A key that is not known is a mistake. A key of train.py is a mistake on the command line of
another script, but not in a file, because one file serves all scripts. All mistakes are reported together,
before any work.

Each script declares one dataclass of keys (config_keys.py). --help prints the comment behind each, or above
it after `#:`. A dataclass may define `check()`, which returns a list of complaints, and
`of_this_version(saved)`, which gives back what a config.json holds, or raises ValueError.
"""

from host import interruption, safe_path  # noqa: F401 (before a process is started)
from host.disk import read_json

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import re
import runpy
import sys
import textwrap
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from os.path import isfile, lexists
from pathlib import Path

import config_keys
import foreign_keys

ROOT = Path(__file__).resolve().parent
Saved = Callable[[dict], Path | dict | None]
LISTS = {list[str]: str, list[int]: int, list[float]: float}  # from a text: separated by commas
OTHER_WORDS = {"gpu": "cuda", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TRUE, FALSE, NONE = ("True", "true", "1"), ("False", "false", "0"), ("None", "none")


class ConfigError(ValueError):
    """Every mistake found in a configuration, one per line.

    instead: values with which the other keys can still be checked; None: they cannot.
    """

    def __init__(self, mistakes: list[str], instead: dict | None = None):
        self.mistakes, self.instead = mistakes, instead
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        super().__init__(f"{count} in the configuration:\n" + "\n".join(f"  {m}" for m in mistakes))


def parse(
    config_class,
    argv: list[str],
    positional: str | None = None,
    saved: Saved | None = None,
    files: bool = True,
    known: Iterable[str] = (),
):
    """Build a `config_class` from a command line, or print what is wrong and exit with status 2.

    `positional` names the key that an argument which is no .py file sets (sample.py takes a run
    folder that way). See `resolve` for `saved` and `known`. files=False: the script takes no config files.
    From here on, Ctrl-C ends the script by one line, and a reader who has gone by none: no traceback.
    """
    interruption.install()
    if any(argument in ("-h", "--help") for argument in argv):
        end_with_help(config_class, positional, files)
    try:
        if not files and (named := [a for a in argv if a.endswith(".py") and not a.startswith("--")]):
            raise ConfigError(
                [f"{name}: this script takes no config files, leave it out" for name in named]
            )
        return resolve(config_class, argv, positional, saved, known)
    except ConfigError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def resolve(
    config_class,
    argv: list[str],
    positional: str | None = None,
    saved: Saved | None = None,
    known: Iterable[str] = (),
):
    """Like `parse`, but raises ConfigError.

    known: keys that the script takes besides, which an unknown one may have meant.

    `saved` gets the values that a file or an override names, by key, and returns what supplies the others:
    a config.json, a dict, or None. It may raise ConfigError itself, whose `instead` then counts.
    """
    fields = {field.name for field in dataclasses.fields(config_class)}
    hints = {key: hint for key, hint in typing.get_type_hints(config_class).items() if key in fields}
    values, mistakes, refused = {}, [], set()
    named, derivations, unread = {}, [], False  # by the files

    def assign(source, key, value, from_text):
        if key not in hints:
            meant = [{*hints, *known}] if from_text else [hints, _of_training()]
            mistakes.append(f"{source}: {_unknown(key, meant)}")
            return
        try:
            values[key] = _convert(value, hints[key], from_text)
        except ValueError as error:
            mistakes.append(f"{source}: {key} {error}")
            refused.add(key)

    overrides, values_apart = [], set()
    for place, argument in enumerate(argv):
        if place in values_apart:
            continue
        if argument.startswith("--"):
            written, equals, value = argument[2:].partition("=")
            key = written.replace("-", "_")
            if not equals and (
                apart := _value_apart(argv[place + 1 : place + 2], hints.get(key), positional)
            ):
                values_apart.add(place + 1)
                argument = f"{argument} {apart}"
            if equals:
                overrides.append((argument, key, value))
            elif key in hints and apart:
                mistakes.append(f"{argument}: write it as --{written}={apart}")
            elif hints.get(key) in (bool, bool | None):
                overrides.append((argument, key, "True"))
            elif key in hints:
                mistakes.append(f"{argument}: write it as --{written}=VALUE")
            else:
                mistakes.append(f"{argument}: {_unknown(key, [{*hints, *known}])}")
        elif argument.endswith(".py") or ".py+" in argument:
            try:
                files_named = stacked(argument)
            except ValueError as error:
                mistakes.append(str(error))
                unread = True
                continue
            for file in files_named:
                before = len(mistakes)
                assigned, derived = _run_file(file, mistakes)
                unread |= len(mistakes) > before
                if positional and hints[positional] == list[str] and _is_of_training(assigned, hints):
                    run = f", or name its run folder {assigned['out_dir']}" if "out_dir" in assigned else ""
                    mistakes.append(f"{file} is a config, not a run: leave it out{run}")
                    continue
                named |= assigned
                derivations += [(file, derived)] if derived else []
                for key, value in assigned.items():
                    if key in hints or key not in _of_training():
                        assign(file, key, value, from_text=False)
        elif positional and hints[positional] == list[str]:
            assign(
                argument, positional, [*values.get(positional, []), *argument.split(",")], from_text=False
            )
        elif positional and positional not in values:
            assign(argument, positional, argument, from_text=True)
        elif positional and "=" not in argument:
            mistakes.append(f"{argument}: one model only, {positional} is {values[positional]} already")
        else:
            mistakes.append(f"{argument}: neither a config file (.py) nor --key=value")
    for source, key, value in overrides:
        assign(source, key, value, from_text=True)
    if unread:  # what else is found would be of defaults, in the place of what such a file says
        raise ConfigError(mistakes)
    overridden = {key for _, key, _ in overrides}
    for source, derived in derivations:
        for key, value in _derived(source, derived, named | values, mistakes).items():
            if key not in overridden and (key in hints or key not in _of_training()):
                assign(f"{source}, derived", key, value, from_text=False)
    checkable = True
    if saved is not None:
        try:
            others = saved(dict(values))
        except ConfigError as error:
            mistakes += error.mistakes
            others = None
            # defaults in the place of what could not be had would be complained of
            checkable = error.instead is not None
            values |= error.instead or {}
        except OSError as error:  # of a path that a key names
            mistakes.append(_of_the_system(error))
            others, checkable = None, False
        source = "the saved configuration" if isinstance(others, dict) else str(others)
        if isinstance(others, Path):
            before = len(mistakes)
            others = _read_saved(others, mistakes, config_class)
            checkable &= len(mistakes) == before
        for key, value in (others or {}).items():
            if key not in values:
                assign(source, key, value, from_text=False)
    missing = [
        field.name
        for field in dataclasses.fields(config_class)
        if field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    config = None
    if missing:
        script = Path(sys.argv[0]).name
        usage = {positional: f" (usage: {script} {(positional or '').upper()} [--key=value ...])"}
        told = [f"--{name}=... is required{usage.get(name, '')}" for name in missing if name not in refused]
        mistakes += told
    elif checkable:
        config = config_class(**values)
        # a complaint about a key that was refused already would be about its default
        try:
            complaints = dict.fromkeys([*config_keys.mistakes(config), *getattr(config, "check", list)()])
        except OSError as error:  # of a path that a key names
            complaints = [_of_the_system(error)]
        mistakes += [c for c in complaints if not any(re.search(rf"\b{key}\b", c) for key in refused)]
    if mistakes:
        raise ConfigError(mistakes)
    return config


def _value_apart(following: list[str], hint, positional: str | None) -> str | None:
    """The argument that follows a key without `=`, where it can only have been meant as the key's value."""
    for value in following:
        if hint in (bool, bool | None):
            meant = value in TRUE + FALSE
        else:  # a file may be the model, or a config
            alone = lexists(value) and (positional is not None or value.endswith(".py"))
            meant = not value.startswith("--") and not alone
        if meant:
            return value
    return None


def stacked(argument: str) -> list[str]:
    """The config files that one argument names, separated by `+`, in the order in which they apply.

    A file whose name holds a `+` is that file. Raises ValueError where a name is missing beside a `+`.
    """
    if isfile(argument):
        return [argument]
    files = argument.split("+")
    if not all(file.strip() for file in files):
        write = "write config/gpt2.py+config/size/small.py"
        raise ValueError(f"{argument!r}: a config file is missing beside a +; {write}")
    return files


def assigned(file: str) -> dict:
    """The keys that a config file assigns, with their values; none where it cannot be run."""
    return _run_file(file, [])[0]


def differing(config) -> dict:
    """The keys that differ from their defaults, in order, with their values."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {f.name: values[f.name] for f in dataclasses.fields(config) if values[f.name] != f.default}


def end_with_help(config_class, positional: str | None = None, files: bool = True, about: str = ""):
    """Print what --help says, with `about` on top, and exit."""
    print(about + help_text(config_class, positional, files))
    sys.exit(0)


def help_text(config_class, positional: str | None = None, files: bool = True) -> str:
    script = Path(sys.argv[0]).name
    what = ("[config.py ...] " if files else "") + "[--key=value ...]"
    if positional:
        what = f"[{positional.upper()}] {what}"
    hints = typing.get_type_hints(config_class)
    alone = " (a bool without a value is True: --key means --key=True)" if bool in hints.values() else ""
    lines = [f"usage: {script} {what}", "", (config_class.__doc__ or "").strip(), "", f"keys{alone}:"]
    notes, headings = field_comments(config_class), field_headings(config_class)
    marks = config_keys.marks(config_class)
    for field in dataclasses.fields(config_class):
        if field.name in headings:
            lines += ["", f"{headings[field.name]}:"]
        if field.default_factory is not dataclasses.MISSING:
            default = repr(field.default_factory())
        else:
            default = "required" if field.default is dataclasses.MISSING else repr(field.default)
        named = [mark for mark in marks[field.name] if isinstance(mark, config_keys.Named)]
        kind = named[0] if named else _type_name(hints[field.name])
        lines.append(f"  --{field.name}={default}  ({kind})")
        lines += [f"        {notes[field.name]}"] if field.name in notes else []
    return "\n".join(lines)


def field_comments(config_class) -> dict[str, str]:
    """What is said of each field of a dataclass: behind it, or above it after `#:`."""
    notes = {}
    for source in _sources(config_class):
        notes |= dict(re.findall(r"^    (\w+): [^#\n]*?(?:\"[^\"\n]*\")?\s*# (.*)$", source, re.MULTILINE))
        notes |= {key: text for text, key in re.findall(r"^    #: (.+)\n    (\w+): ", source, re.MULTILINE)}
    return notes


def field_headings(config_class) -> dict[str, str]:
    """{the first field of a group: the comment that stands above it on a line of its own}"""
    heading = r"^    # (.+)\n(?:    #: .+\n)?    (\w+): "
    return {
        key: text
        for source in _sources(config_class)
        for text, key in re.findall(heading, source, re.MULTILINE)
    }


def _sources(config_class) -> Iterator[str]:
    """The source of a dataclass and of those it inherits from, these first."""
    for cls in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(cls):
            yield _source(cls)


@functools.cache
def _source(cls: type) -> str:
    return textwrap.dedent(inspect.getsource(cls))  # parses the whole file


@functools.cache
def _of_training() -> frozenset[str]:
    """The keys of train.py, which config files hold: other scripts pass over them."""
    from training.config import TrainConfig  # brings PyTorch, and is needed for such keys only

    return frozenset(field.name for field in dataclasses.fields(TrainConfig))


def _is_of_training(assigned: dict, own) -> bool:
    """Whether a config file that assigns these keys is one of train.py, with none for this script alone."""
    trained = _of_training()
    return bool(assigned.keys() & trained - set(own)) and not assigned.keys() & set(own) - trained


def _unknown(key, meant) -> str:
    """What is said of an unknown key. meant: groups of keys; the first with another word for it, or a
    similar one, counts.
    """
    if key in _of_training():
        return f"{key} is a key of train.py; this script does not use it"
    for keys in meant:
        if here := foreign_keys.hint(key, keys):
            return f"unknown key {key!r}: {here}"
        if near := difflib.get_close_matches(key, keys, n=3, cutoff=0.6):
            return f"unknown key {key!r}; did you mean {' or '.join(near)}?"
    return f"unknown key {key!r} (see --help)"


def _derived(path: str, function: Callable[[dict], dict], keys: dict, mistakes: list[str]) -> dict:
    """What a config file's `derived` makes of the keys that all files and overrides have named."""
    try:
        found = function(dict(keys))
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            raise TypeError(f"it must return a dict of keys, not {found!r}")
        return found
    except (Exception, SystemExit) as error:
        mistakes.append(f"{path}: derived() failed: {type(error).__name__}: {error}")
        return {}


def _run_file(path: str, mistakes: list[str]) -> tuple[dict, Callable | None]:
    """(the names that a config file assigns, its function `derived`). `_private` names, modules and other
    functions do not count.
    """
    try:
        is_file = Path(path).is_file()
    except OSError as error:
        mistakes.append(_of_the_system(error))
        return {}, None
    if not is_file and lexists(path):
        mistakes.append(f"{path} is no config file: a folder, a pipe, or a link to nothing")
        return {}, None
    if not is_file:
        folder = Path(path).parent
        names = [str(p) for p in folder.glob("*.py")] if folder.is_dir() else []
        near = difflib.get_close_matches(path, names, n=3)
        mistakes.append(
            f"{path}: no such config file" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
        return {}, None
    try:
        Path(path).read_text("utf-8")  # Python itself lets comments in other encodings pass
    except (OSError, UnicodeDecodeError) as error:
        told = _of_the_system(error) if isinstance(error, OSError) else f"{path} is not in UTF-8 ({error})"
        mistakes.append(told)
        return {}, None
    try:
        namespace = runpy.run_path(path)
    except (Exception, SystemExit) as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else "?"
        mistakes.append(f"{path}, line {line}: {type(error).__name__}: {error}")
        return {}, None
    assigned = {
        key: value
        for key, value in namespace.items()
        if not key.startswith("_") and not isinstance(value, types.ModuleType) and not callable(value)
    }
    derived = namespace.get("derived")
    return assigned, derived if callable(derived) else None


def _of_the_system(error: OSError) -> str:
    """What the system says of a path that cannot be looked at: its name is too long, for one."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _read_saved(path: Path, mistakes: list[str], config_class) -> dict:
    try:
        values = read_json(path, ValueError)
    except ValueError as error:
        mistakes.append(str(error))
        return {}
    try:
        return getattr(config_class, "of_this_version", dict)(values)
    except ValueError as error:
        mistakes.append(f"{path}: {error}")
        return {}


def _convert(value, hint, from_text: bool):
    """`value` as the type of the field; a text from the command line is parsed first."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in options:
        if value is None or (from_text and value in NONE):
            return None
        (hint,) = (option for option in options if option is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            word = OTHER_WORDS.get(str(value), str(value).lower())
            near = difflib.get_close_matches(word, choices, 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"must be one of {', '.join(map(repr, choices))}, not {value!r}{hint}")
        return value
    if from_text:
        value = _from_text(value, hint)
    try:
        if hint is float and type(value) is int:
            value = float(value)
        if hint == list[float] and type(value) in (list, tuple):
            value = [float(item) if type(item) is int else item for item in value]
    except OverflowError:
        raise ValueError("is too large for a float") from None
    if hint in LISTS:
        right = type(value) is list and all(type(item) is LISTS[hint] for item in value)
    else:
        right = type(value) is hint
    if not right:
        kind = "True or False" if hint is bool else f"of type {_type_name(hint)}"
        found = repr(value) if from_text else f"{value!r} ({type(value).__name__})"
        raise ValueError(f"must be {kind}, not {found}")
    numbers = value if hint == list[float] else [value] if hint is float else []
    if wrong := [number for number in numbers if not math.isfinite(number)]:
        raise ValueError(f"must be finite, not {wrong[0]}")
    return value


def _from_text(text: str, hint):
    if hint is bool and text in TRUE + FALSE:
        return text in TRUE
    if hint in (int, float):
        with contextlib.suppress(ValueError):
            return hint(text)
        with contextlib.suppress(ValueError):  # 1e3
            if hint is int and "e" in text.lower() and (number := float(text)).is_integer():
                return int(number)
    return [_from_text(item, LISTS[hint]) for item in text.split(",")] if hint in LISTS else text


def _type_name(hint) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return " | ".join("None" if o is type(None) else _type_name(o) for o in typing.get_args(hint))
    return f"list of {LISTS[hint].__name__}" if hint in LISTS else hint.__name__
