"""How a package is installed for the Python that runs."""

import importlib.metadata
import shlex


def install(requirement: str) -> str:
    """The command. Environments that uv made have no pip; the next one on the path is another Python's.

    importlib.util.find_spec("pip") is not asked: it makes a later import of setuptools fail, and so
    torch.compile.
    """
    tool = "pip" if any(importlib.metadata.distributions(name="pip")) else "uv pip"
    return f"{tool} install {shlex.quote(requirement)}"
