"""Reads the entries of a dictionary of dictd: an index, and a compressed text."""

import string

from corpus import DataError, compressed

DIGITS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"


def entries(package: str, contents: dict[str, bytes]) -> list[str]:
    """Each entry once, in the order of the text. Raises DataError if the package lacks a part.

    contents: {path: content} with one .index and one .dict.dz (gzip with an index of its own). Entries that
    tell the licence and the origin of the dictionary are left out.
    """
    parts = {name.partition(".")[2]: content for path, content in contents.items() for name in [base(path)]}
    try:
        index = parts["index"].decode()
        dictionary = compressed.decompressed(f"the dictionary of {package}", parts["dict.dz"])
    except KeyError as error:
        missing = f"a file with the ending .{error.args[0]}"
        raise DataError(f"{package} does not hold {missing}: it is not the package of Debian 12") from None
    except UnicodeDecodeError as error:
        raise DataError(f"the index of {package} is damaged: {error}") from None
    places = set()
    for count, line in enumerate(index.splitlines(), 1):
        try:
            word, start, size = line.split("\t")[:3]
            start, size = number(start), number(size)
        except ValueError:
            start, size = len(dictionary), 1
        if start + size > len(dictionary):
            raise DataError(f"the index of {package} is damaged: its line {count:,} is {line[:80]!r}")
        if not word.startswith(("00-database", "00database")):
            places.add((start, size))
    return [
        dictionary[start : start + size].decode(errors="replace").strip() for start, size in sorted(places)
    ]


def base(path: str) -> str:
    return path.rpartition("/")[2]


def number(digits: str) -> int:
    """Reads a number in dictd's base 64."""
    value = 0
    for digit in digits:
        value = 64 * value + DIGITS.index(digit)
    return value
