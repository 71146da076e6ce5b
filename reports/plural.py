"""A number and its noun, for messages."""


def counted(number: int, noun: str) -> str:
    """1, "run" -> "1 run"; 1200, "run" -> "1,200 runs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
