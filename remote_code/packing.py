"""The code of the models as files that transformers loads: flat, with relative imports.

transformers copies a model's code into its cache. It finds the files by lines `from .name import`, and
looks for name.py in the folder itself. So layers/ladder.py becomes layers_ladder.py, and
`from layers.ladder import` becomes `from .layers_ladder import`.
"""

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION, MODELING = "remote_code.configuration_cofrgenet", "remote_code.modeling_cofrgenet"
HEAD = """\
# {path} of the CoFrGeNet codebase, copied by export.py.
# Imports were rewritten for transformers, and nothing else: change the original, not this copy.
"""
OPTIONAL = "triton"  # kernels for GPUs, imported only where it is installed
DTYPE = {"dtype": "float32", "torch_dtype": "float32"}  # of transformers 5, and of 4
# of config.json: what a folder's files are to transformers
ENTRIES = {
    "model_type": "cofrgenet",
    "architectures": ["CoFrGeNetForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_cofrgenet.CoFrGeNetConfig",
        "AutoModelForCausalLM": "modeling_cofrgenet.CoFrGeNetForCausalLM",
    },
    **DTYPE,
}
LIST = """

if False:  # never imported here: by these lines transformers finds the files of the model
"""


class PackingError(ValueError):
    """Code that cannot be packed; says which line and what to write instead."""


def packed(parts: Iterable[type] = (), root: Path | None = None) -> tuple[dict[str, str], set[str]]:
    """({file: its text}, other packages that the files import) of the model's code.

    root: the folder of the code, None for this repository. parts: classes that must be among it. Raises
    PackingError for a class that is not, and for an import that has no relative form.
    """
    root = root or ROOT
    files, packages, waiting, seen = {}, set(), [CONFIGURATION, MODELING], {CONFIGURATION, MODELING}
    while waiting:
        name = waiting.pop()
        path = find(root, name)
        text, ours, others = rewritten(root, name, path)
        file = flat(name) + ".py"
        if file in files:
            raise PackingError(f"{path} and another file would both become {file}: rename one of them")
        files[file] = HEAD.format(path=path.relative_to(root).as_posix()) + text
        packages |= others
        waiting += sorted(ours - seen)
        seen |= ours
    for part in parts:
        if part.__module__ not in seen:
            raise PackingError(
                f"{part.__name__} is of the module {part.__module__}, and no file of the model imports "
                "that: write the class into a file of layers/ that layers/__init__.py imports"
            )
    modules = sorted(flat(name) for name in seen - {MODELING})
    files[flat(MODELING) + ".py"] += LIST + "".join(
        f"    from .{name} import __name__\n" for name in modules
    )
    if (license := root / "LICENSE").is_file():
        files["LICENSE"] = license.read_text()
    return dict(sorted(files.items())), packages - {OPTIONAL}


def flat(name: str) -> str:
    """The name of a module in the folder."""
    return name.removeprefix("remote_code.").replace(".", "_")


def find(root: Path, name: str) -> Path | None:
    """The file of a module of ours, or None."""
    path = root.joinpath(*name.split("."))
    candidates = (path.with_name(path.name + ".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def rewritten(root: Path, name: str, path: Path) -> tuple[str, set[str], set[str]]:
    """(text with relative imports, modules of ours that it imports, other packages that it imports)"""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    ours, packages = set(), set()
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    # the last first, so that places of the others stay
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        try:
            statements, modules, others = relative(root, name, path, node)
        except PackingError as error:
            raise PackingError(f"{path}, line {node.lineno}: {error}") from None
        packages |= others
        ours |= modules
        before = lines[node.lineno - 1][: node.col_offset]
        after = lines[node.end_lineno - 1][node.end_col_offset :]
        if OPTIONAL in others and not before:
            # transformers asks for the packages of all imports but those in a `try`
            statements = ["try:", f"    {ast.unparse(node)}", "except ImportError:", "    raise"]
        elif not modules:
            continue
        between = "; " if before.strip() else "\n" + before.decode()
        lines[node.lineno - 1 : node.end_lineno] = [before + between.join(statements).encode() + after]
    return b"".join(lines).decode(), ours, packages - sys.stdlib_module_names


def relative(root: Path, name: str, path: Path, node) -> tuple[list[str], set[str], set[str]]:
    """(statements in place of one import, modules of ours in it, other packages in it)"""
    if isinstance(node, ast.Import):
        found = {alias.name for alias in node.names if find(root, alias.name)}
        for alias in node.names:
            if alias.name in found and "." in alias.name and not alias.asname:
                package, _, module = alias.name.rpartition(".")
                raise PackingError(
                    f"write `from {package} import {module}` instead of `import {alias.name}`"
                )
        statements = [
            f"from . import {flat(alias.name)} as {alias.asname or alias.name}"
            if alias.name in found
            else f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
            for alias in node.names
        ]
        others = {alias.name.split(".")[0] for alias in node.names if alias.name not in found}
        return statements, found, others
    source = node.module or ""
    if node.level:
        parts = name.split(".")
        package = parts[: len(parts) - node.level + (path.name == "__init__.py")]
        source = ".".join([*package, *filter(None, [node.module])])
    inner = {alias.name: f"{source}.{alias.name}" for alias in node.names}
    modules = {alias: module for alias, module in inner.items() if find(root, module)}
    statements = [
        f"from . import {flat(modules[alias.name])} as {alias.asname or alias.name}"
        for alias in node.names
        if alias.name in modules
    ]
    names = [alias for alias in node.names if alias.name not in modules]
    if not names:
        return statements, set(modules.values()), set()
    if not find(root, source):
        if node.level or modules:
            raise PackingError(f"there is no file of the module {source}")
        return [], set(), {source.split(".")[0]}
    listed = ", ".join(ast.unparse(alias) for alias in names)
    return [*statements, f"from .{flat(source)} import {listed}"], {source, *modules.values()}, set()
