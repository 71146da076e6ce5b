"""How a package is installed for the Python that runs."""

import importlib.util
import shlex


def install(requirement: str) -> str:
    """The command. Environments that uv made have no pip; the next one on the path is another Python's."""
    tool = "pip" if importlib.util.find_spec("pip") else "uv pip"
    return f"{tool} install {shlex.quote(requirement)}"
