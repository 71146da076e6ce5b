"""Who imports whom: no circle between files, and nothing imports a script."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = {"train", "sample", "evaluate", "finetune", "bench", "compare", "ablate", "export", "count"}
SCRIPTS |= {"scale", "translate"}


def module_files() -> dict[str, Path]:
    """{module: file} of everything but tests and results"""
    files = [*ROOT.glob("*.py"), *(path for path in ROOT.glob("[a-z]*/**/*.py"))]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in files}
    outside = ("tests.", "results.", "config.")
    return {name.removesuffix(".__init__"): p for name, p in names.items() if not name.startswith(outside)}


def imported(path: Path, known) -> set[str]:
    """The modules of this repository that a file imports anywhere, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known or {node.module}
    return found & known


def test_no_circle_and_no_script_is_imported():
    files = module_files()
    graph = {name: imported(path, files.keys()) for name, path in files.items()}
    assert len(graph) > 90
    assert "corpus.loader" in graph["corpus.mixture"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError that names the files
    importers = {name: found & SCRIPTS for name, found in graph.items()}
    assert not {name: scripts for name, scripts in importers.items() if scripts}
