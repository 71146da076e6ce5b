"""The model's code as flat files: how imports are rewritten, and what cannot be packed."""

import ast

import pytest

import export
from layers import ATTENTION, FFN
from remote_code import packing
from remote_code.packing import PackingError, packed, rewritten


def test_every_file_is_found_and_says_where_it_comes_from():

    files, packages = packed([*ATTENTION.values(), *FFN.values()])
    assert packages == {"torch", "numpy", "transformers"}
    assert "MIT" in files.pop("LICENSE")
    assert {"layers.py", "layers_ladder.py", "kernels_continued_fraction_triton.py"} < files.keys()
    for name, text in files.items():
        assert text.startswith("# ")
        original, said = text.splitlines()[0].removeprefix("# ").split(" ", 1)
        assert (packing.ROOT / original).is_file(), name
        assert said == "of the CoFrGeNet codebase, copied by export.py."
        absolute = [
            n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and not n.level
        ]
        assert not [module for module in absolute if packing.find(packing.ROOT, module)], name


def test_what_transformers_reads_in_the_files(tmp_path):
    """Which files it copies, and which packages it asks for."""
    from transformers.dynamic_module_utils import get_imports, get_relative_import_files

    files, _ = packed()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    copied = {
        path.rsplit("/", 1)[1] for path in get_relative_import_files(tmp_path / "modeling_cofrgenet.py")
    }
    assert copied == {name for name in files if name.endswith(".py")} - {"modeling_cofrgenet.py"}
    assert get_relative_import_files(tmp_path / "configuration_cofrgenet.py") == []
    for name in copied:
        assert "triton" not in get_imports(tmp_path / name)


@pytest.fixture
def tree(tmp_path):
    """A repository of our form: a package with an __init__.py, one without, a module."""
    for file in ("layers/__init__.py", "layers/ladder.py", "kernels/backend.py", "model.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("KEYS = ()\n")

    def rewrite(text, name="layers.mine"):
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.write_text(text)
        return rewritten(tmp_path, name, path)

    return rewrite


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        (
            "from layers.ladder import (\n    KEYS,\n    x as y,\n)",
            "from .layers_ladder import KEYS, x as y",
        ),
        ("from layers import ladder", "from . import layers_ladder as ladder"),
        ("from layers import FFN", "from .layers import FFN"),
        ("from kernels import backend as b", "from . import kernels_backend as b"),
        (
            "    from layers import FFN, ladder",
            "    from . import layers_ladder as ladder\n    from .layers import FFN",
        ),
        ("from layers import *", "from .layers import *"),
        ("import model", "from . import model as model"),
        ("import os, model as m", "import os\nfrom . import model as m"),
        ("import layers.ladder as l", "from . import layers_ladder as l"),
        ("from .ladder import KEYS", "from .layers_ladder import KEYS"),
        ("from . import ladder", "from . import layers_ladder as ladder"),
        ("from ..model import KEYS", "from .model import KEYS"),
        ("ü = 1; from model import KEYS; z = 2  # ü", "ü = 1; from .model import KEYS; z = 2  # ü"),
        ("from torch.nn import Linear", "from torch.nn import Linear"),
        ("import triton", "try:\n    import triton\nexcept ImportError:\n    raise"),
    ],
)
def test_rewritten_imports(tree, line, becomes):
    text = f"if True:\n{line}\n" if line.startswith(" ") else f"{line}\n"
    found = tree(text)[0]
    assert found == (f"if True:\n{becomes}\n" if line.startswith(" ") else f"{becomes}\n")
    ast.parse(found)


def test_what_a_file_needs(tree):
    _, ours, packages = tree(
        "import os, einops\nfrom layers import FFN, ladder\nimport torch.nn.functional as F\n"
    )
    assert ours == {"layers", "layers.ladder"}
    assert packages == {"einops", "torch"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("\nimport layers.ladder", r"mine\.py, line 2: .*`from layers import ladder`"),
        ("from .nothing import x", r"mine\.py, line 1: .*layers\.nothing"),
    ],
)
def test_imports_that_have_no_relative_form(tree, line, said):
    with pytest.raises(PackingError, match=said):
        tree(line)


def test_two_files_of_one_name(tmp_path):
    for file, text in (
        ("remote_code/configuration_cofrgenet.py", ""),
        ("remote_code/modeling_cofrgenet.py", "from a.b import x\nfrom a_b import y\n"),
        ("a/b.py", ""),
        ("a_b.py", ""),
    ):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    with pytest.raises(PackingError, match=r"both .* a_b\.py"):
        packed(root=tmp_path)


def test_a_class_that_no_file_holds(run, tmp_path, monkeypatch):
    """A notebook's class trains, but its code could not come along."""
    mine = type("Mine", (FFN["mlp"],), {"__module__": "__main__"})
    monkeypatch.setitem(FFN, "mine", mine)
    folder, _ = run("run", "--max_iters=2", "--ffn=mine")
    with pytest.raises(SystemExit, match=r"export\.py: Mine .*__main__"):
        export.main([str(folder), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
