"""Config keys, declared where they are read: fields of a dataclass, each with a comment for --help.

    learning_rate: Annotated[float, Above(0), FROM_HERE] = 6e-4  # peak learning rate, after the warmup

Behind the type stand marks: the values that a key may have, what happens where a run goes on with another
value, whether comparisons look at it, and what it acts with. MARKS of a class are those of all its keys;
of two rules, a key's own counts. `mistakes`, `marked`, `resume_rule` and `acts` read them.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import typing
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Bound:
    bound: float
    words = ""

    def __str__(self):
        return f"{self.words} {self.bound}"


class AtLeast(Bound):
    words = "at least"

    def holds(self, value) -> bool:
        return value >= self.bound


class Above(Bound):
    words = "above"

    def holds(self, value) -> bool:
        return value > self.bound


class AtMost(Bound):
    words = "at most"

    def holds(self, value) -> bool:
        return value <= self.bound


class Below(Bound):
    words = "below"

    def holds(self, value) -> bool:
        return value < self.bound


@dataclass(frozen=True)
class Changes:
    """A run may go on with another value. effect: what the log says of it."""

    effect: str


@dataclass(frozen=True)
class Fixed:
    """A run cannot go on with another value. reason: why."""

    reason: str


FREE = Changes("")  # a run may go on with another value, and no later loss depends on it
FROM_HERE = Changes("from here on")
MAKES_THE_MODEL = Fixed("it makes another model")

INCIDENTAL = "incidental"  # does not change the results of a run: where it is stored, how it is watched
OF_LADDERS = "of ladders"  # how continued fractions are trained: a mistake in a model that has none


@dataclass(frozen=True)
class With:
    """The key acts where another one has this value only."""

    key: str
    value: object


@dataclass(frozen=True)
class Named:
    """A name of a registry, or several with commas between them if the key is a pattern."""

    registry: dict
    pattern: bool = False

    def __str__(self):
        return " | ".join(self.registry) + (" | several: a,b,.." if self.pattern else "")


MARK, WORDS = Bound | Changes | Fixed | With, (INCIDENTAL, OF_LADDERS)

Count = Annotated[int, AtLeast(1)]
CountOrNone = Annotated[int | None, AtLeast(1)]
Natural = Annotated[int, AtLeast(0)]
Positive = Annotated[float, Above(0)]
NotNegative = Annotated[float, AtLeast(0)]
Share = Annotated[float, AtLeast(0), Below(1)]
ShareOrNone = Annotated[float | None, Above(0), AtMost(1)]
Seed = Annotated[int, AtLeast(0), Below(2**32)]


def names(keys: type | None) -> tuple[str, ...]:
    """The keys of a dataclass, in order; none of None."""
    return () if keys is None else tuple(field.name for field in dataclasses.fields(keys))


@functools.cache
def marks(keys: type) -> dict[str, tuple]:
    """{key: what stands behind its type, then the MARKS of the class that declares it}"""
    hints, found = typing.get_type_hints(keys, include_extras=True), {}
    for key in names(keys):
        owner = next(cls for cls in keys.__mro__ if key in inspect.get_annotations(cls))
        found[key] = (*getattr(hints[key], "__metadata__", ()), *vars(owner).get("MARKS", ()))
    return found


@functools.cache
def choices(keys: type) -> dict[str, tuple]:
    """{key whose type is a Literal: its values}"""
    hints = typing.get_type_hints(keys)
    return {
        key: typing.get_args(hints[key])
        for key in names(keys)
        if typing.get_origin(hints[key]) is typing.Literal
    }


def marked(keys: type, mark) -> set[str]:
    """The keys with a mark: INCIDENTAL, OF_LADDERS, FREE."""
    return {key for key, found in marks(keys).items() if mark in found}


def resume_rule(keys: type, key: str) -> Changes | Fixed:
    """What happens where a run goes on with another value of a key. One without a rule makes the model."""
    found = marks(keys)[key]
    rules = [mark for mark in found if isinstance(mark, Changes | Fixed)]
    return rules[0] if rules else FREE if INCIDENTAL in found else MAKES_THE_MODEL


def acts(config, key: str) -> bool:
    """Whether the other keys that a key acts with have their values."""
    found = (mark for mark in marks(type(config))[key] if isinstance(mark, With))
    return all(getattr(config, mark.key) == mark.value for mark in found)


def mistakes(config) -> list[str]:
    """Values that a key of a dataclass must not have, one sentence each."""
    wrong = []
    for key, found in marks(type(config)).items():
        value, bounds = getattr(config, key), [mark for mark in found if isinstance(mark, Bound)]
        if isinstance(value, float) and not math.isfinite(value):
            wrong.append(f"{key} must be finite, not {value}")
        elif value is not None and not all(bound.holds(value) for bound in bounds):
            wrong.append(f"{key} must be {' and '.join(map(str, bounds))}, not {value}")
    for key, known in choices(type(config)).items():
        if (value := getattr(config, key)) not in known:
            wrong.append(one_of(key, value, known))
    return wrong


def idle(config) -> list[str]:
    """Keys that are not at their defaults and act with other values of other keys, one sentence each."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return [
        f"{key}={getattr(config, key)} acts with {mark.key}={mark.value} only, and this is "
        f"{mark.key}={getattr(config, mark.key)}: take --{key}={defaults[key]} or --{mark.key}={mark.value}"
        for key, found in marks(type(config)).items()
        for mark in found
        if isinstance(mark, With)
        and getattr(config, key) != defaults[key]
        and getattr(config, mark.key) != mark.value
    ]


def wrong_declarations(keys: type) -> list[str]:
    """What is wrong with a class of keys as it is written, one sentence each."""
    name = f"{keys.__module__}.{keys.__qualname__}"
    if "__dataclass_fields__" not in vars(keys):
        return [f"{name} is no dataclass: write @dataclass above it"]
    wrong, fields = [], dataclasses.fields(keys)
    own = {key for key, value in vars(keys).items() if key != "MARKS" and not key.startswith("_")}
    for key in sorted(own - {field.name for field in fields}):
        wrong.append(f"{name}.{key} has no type: write {key}: float = ..., or the type that it has")
    for field in fields:
        kind, *marks = typing.get_args(field.type) if hasattr(field.type, "__metadata__") else [field.type]
        kind = [one for one in typing.get_args(kind) or [kind] if one is not type(None)]
        plain = [one for one in kind if typing.get_origin(one) is not typing.Literal]
        literal = typing.Literal in map(typing.get_origin, (field.type, *typing.get_args(field.type)))
        if field.default is dataclasses.MISSING:
            wrong.append(f"{name}.{field.name} has no default")
        if not literal and not set(plain) <= {bool, int, float, str}:
            wrong.append(
                f"{name}.{field.name} is of type {field.type}, and a key is a bool, int, float or str, one "
                "of them or None, or a Literal; bounds stand in Annotated[float, Above(0)]"
            )
        if strange := [mark for mark in marks if not isinstance(mark, MARK) and mark not in WORDS]:
            wrong.append(f"{name}.{field.name}: {strange[0]!r} is no mark of config_keys.py")
    return wrong


def declared_twice(keys: type) -> list[str]:
    """Keys that two of the classes that a dataclass inherits from declare, one sentence each."""
    owner, wrong = {}, []
    for cls in reversed(keys.__mro__):
        for key in inspect.get_annotations(cls):
            if owner.setdefault(key, cls) is not cls:
                both = " and ".join(f"{one.__module__}.{one.__qualname__}" for one in (owner[key], cls))
                wrong.append(f"{both} both declare the key {key}: give one of them another name")
    return wrong


def one_of(key: str, value, known) -> str:
    """What is said of a value that is none of those that are known."""
    near = difflib.get_close_matches(str(value).lower(), list(known), n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"{key} must be one of {', '.join(known)}, not {value!r}{hint}"
