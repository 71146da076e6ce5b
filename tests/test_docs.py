"""Links of README and docs/ lead somewhere. Every command there, in heads of configs and in docstrings of
scripts names scripts, files and keys that exist.
"""

import ast
import dataclasses
import glob
import importlib.util
import itertools
import re
import shlex
import shutil
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch

import ablate
import benchmarks.command
import compare
import configurator
import evaluate
import export
import finetune
import foreign_keys
import layers
import sample
import scale
import translate
from launch.measure_gpu import MeasureConfig, with_values
from model import GPT, cache_bytes_per_token
from models.architecture import ModelConfig
from results.mqar import table
from training import pretrained, tracking
from training.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)

# config class and positional key of each script that takes one configuration
SCRIPTS = {
    "train.py": (TrainConfig, None),
    "sample.py": (sample.SampleConfig, "out_dir"),
    "translate.py": (translate.TranslateConfig, "out_dir"),
    "evaluate.py": (evaluate.EvaluateConfig, "models"),
    "finetune.py": (finetune.FinetuneConfig, "models"),
    "compare.py": (compare.CompareConfig, "runs"),
    "export.py": (export.ExportConfig, "folders"),
    "results/mqar/table.py": (table.TableConfig, None),
}
# what else a command may begin with, and why no more of it is checked
UNCHECKED = {
    "source .venv/bin/activate": "the shell's",
    "pip install lm_eval==0.4.13": "installs, in the version of pyproject.toml",
    "pip install sacrebleu==2.6.0": "installs, in the version of pyproject.toml",
    "lm_eval --model hf": "the harness's own command",
    "python -m pytest": "its arguments are paths of tests",
    "python tests/test_golden.py": "takes no arguments",
    "T=": "a variable of the shell",
    "uv sync": "of uv",
}
# files that a reader makes
THEIRS = ("config/study/mine.py", "layers/mine.py")
OF_TORCHRUN = ["nnodes", "nproc_per_node", "max_restarts", "rdzv_backend", "rdzv_id", "rdzv_endpoint"]
LAUNCHERS = {
    "torchrun": rf"(?:--(?:{'|'.join(OF_TORCHRUN)})=\S+ )+(train\.py .*)",
    "sbatch": r"(?:--(?:nodes|gpus-per-node)=\S+ )+launch/slurm\.sh (.*)",
}


def commands(text: str) -> list[str]:
    """Those of the code blocks without a language, and those in the running text."""
    found = []
    for language, block in BLOCK.findall(text):
        if not language:
            found += block.replace("\\\n", " ").splitlines()
    found += re.findall(r"`((?:python|bash|make|torchrun) [^`\n]+)`", BLOCK.sub("", text))
    parts = itertools.chain.from_iterable(re.split(r" && ", line) for line in found)
    words = (shlex.split(part, comments=True) for part in parts)
    return list(dict.fromkeys(shlex.join(line) for line in words if line))


def head(path: Path) -> str:
    """The commands in the head of a config file or in the docstring of a script, as a code block."""
    text = path.read_text()
    if text.startswith("#"):
        lines = re.findall(r"^#   (.*)$", text, re.M)
    else:
        docstring = ast.get_docstring(ast.parse(text)) or ""
        lines = re.findall(r"^ *(python (?:.*\\\n)*.*)$", docstring, re.M)
    # some end in a remark
    return "```\n" + "\n".join(re.sub(r" +\([^()]*\)$", "", line) for line in lines) + "\n```\n"


HEADS = [*ROOT.glob("*.py"), *ROOT.glob("config/**/*.py"), *ROOT.glob("data/*/prepare.py")]
COMMANDS = [(page, command) for page in PAGES for command in commands(TEXTS[page])]
COMMANDS += [
    (str(path.relative_to(ROOT)), command) for path in sorted(HEADS) for command in commands(head(path))
]


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    assert not broken_links(ROOT / page)


def test_a_broken_link_is_found(tmp_path):
    links = "[1](b.md) [2](#one-xpy-two) [3](#three) [4](a.md#one)"
    (tmp_path / "a.md").write_text(f"# One `x.py` two\n{links}")
    assert broken_links(tmp_path / "a.md") == ["b.md", "#three", "a.md#one"]


def test_the_front_page_is_short_and_leads_to_every_page():
    assert len(TEXTS["README.md"].splitlines()) <= 200
    assert [page for page in PAGES[1:] if f"]({page}" not in TEXTS["README.md"]] == []


@pytest.mark.parametrize("page", PAGES[1:])
def test_a_page_starts_with_its_command_and_a_long_one_lists_its_sections(page):
    text = TEXTS[page]
    assert len(text.splitlines()) < 400
    before = text.split("```")[0]
    assert len(before.splitlines()) < 8
    sections = re.findall(r"^## ", BLOCK.sub("", text), re.M)
    listed = re.findall(r"^- \[.*\]\(#.*\)$", text, re.M)
    assert len(text.splitlines()) < 80 or len(listed) == len(sections)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder with our configs and what a reader has beside them; no run of ours is in the way."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "config", folder / "config")
    (folder / "config/study/mine.py").write_text('ffn = "mine"\n')
    (folder / "mine.py").write_text(
        re.search(r"```python\n(.*?)```", TEXTS["docs/models_and_keys.md"], re.S)[1]
    )
    for name in ("glue", "out"):
        (folder / name).mkdir()
    (folder / "PATH").touch()
    return folder


def resolve_command(command: str, monkeypatch):
    """Raises ConfigError, SystemExit or AssertionError where a command cannot work as it stands."""
    program, *words = shlex.split(command)
    arguments = list(itertools.chain.from_iterable(sorted(glob.glob(word)) or [word] for word in words))
    if program in LAUNCHERS:
        match = re.fullmatch(LAUNCHERS[program], shlex.join(arguments))
        assert match, f"not the form of a {program} command: {LAUNCHERS[program]}"
        sizes = re.findall(r"--(?:nnodes|nproc_per_node|nodes|gpus-per-node)=(?:\d+:)?(\d+)", command)
        ranks = 1
        for size in sizes:
            ranks *= int(size)
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        restarts = re.findall(r"--max_restarts=(\d+)", command)
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", (restarts or ["0"])[0])
        arguments = shlex.split(match[1])
        program, arguments = "python", arguments if program == "torchrun" else ["train.py", *arguments]
    if any(command.startswith(known) for known in UNCHECKED):
        return
    if program == "make":
        for target in (word for word in arguments if not re.fullmatch(r"[A-Z]+=\w*", word)):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), f"no target {target}"
        return
    assert program == "python", f"{program}: add it to UNCHECKED, with the reason"
    script, *arguments = arguments
    assert (ROOT / script).is_file(), f"no script {script}"
    if "--help" in arguments:
        assert arguments == ["--help"]
    elif script in SCRIPTS:
        config_class, positional = SCRIPTS[script]
        configurator.resolve(config_class, arguments, positional)
    elif script == "ablate.py":
        ablate.parsed(arguments)
    elif script == "scale.py":
        scale.parsed(arguments)
    elif script == "bench.py":
        benchmarks.command.parsed(arguments)
    elif script == "launch/measure_gpu.py":
        configurator.resolve(MeasureConfig, with_values(arguments))
    elif script == "count.py":
        overrides = [argument for argument in arguments if argument.startswith("--")]
        for model in arguments[: len(arguments) - len(overrides)]:
            configurator.resolve(ModelConfig, [*model.split("+"), *overrides])
    else:
        assert re.fullmatch(r"data/\w+/prepare\.py", script), f"{script}: say here how its keys are checked"
        configurator.resolve(prepare_config(ROOT / script, monkeypatch), arguments)


def prepare_config(script: Path, monkeypatch):
    """The config class of a data set's script."""
    spec = importlib.util.spec_from_file_location("prepare", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "prepare", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module.PrepareConfig


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value.replace("/", "."))
def test_commands(page, command, elsewhere, monkeypatch):
    monkeypatch.chdir(elsewhere)
    monkeypatch.setitem(layers.FFN, "mine", layers.FFN["mlp"])
    monkeypatch.setattr(tracking, "mistakes", lambda keys: [])  # a tracker that the reader installs
    resolve_command(command, monkeypatch)


@pytest.mark.parametrize(
    "command",
    [
        "python nothing.py",
        "python train.py config/nothing.py",
        "python train.py config/demo_dense.py --no_such_key=1",
        "python count.py config/gpt2.py+config/size/nothing.py",
        "python bench.py config/demo_dense.py --no_such_key=1",
        "python ablate.py config/demo_dense.py --vary=no_such_key=1,2",
        "python data/sotu/prepare.py --no_such_key=1",
        "torchrun --nproc_per_node=7 train.py config/cofrgenet_f.py",
        "torchrun --nproc_per_node=8 --max_restarts=3 train.py config/cofrgenet_f.py",
        "sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh config/nothing.py",
        "python launch/measure_gpu.py --stages=nothing",
        "make nothing",
        "rm -rf out",
    ],
)
def test_a_wrong_command_is_found(command, elsewhere, monkeypatch):
    monkeypatch.chdir(elsewhere)
    with pytest.raises((configurator.ConfigError, SystemExit, AssertionError)):
        resolve_command(command, monkeypatch)


def expanded(pattern: str) -> list[str]:
    """a_{b,c}.py -> a_b.py, a_c.py"""
    parts = [part.strip("{}").split(",") for part in re.split(r"({[^}]*})", pattern)]
    return ["".join(choice) for choice in itertools.product(*parts)]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named(page):
    folders = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", TEXTS[page]))
    named = [file for span in spans if re.match(rf"({folders})/\S+$", span) for file in span.split("+")]
    files = [one for file in named for one in expanded(file) if re.search(r"\.(py|sh|md|json)$", one)]
    files = [file for file in files if file not in THEIRS and "NAME" not in file]
    assert [file for file in files if not (ROOT / file).is_file()] == []


def all_keys(monkeypatch) -> set[str]:
    classes = [ModelConfig, *(config_class for config_class, _ in SCRIPTS.values())]
    classes += [ablate.AblateConfig, scale.ScaleConfig, benchmarks.command.BenchConfig, MeasureConfig]
    classes += [prepare_config(script, monkeypatch) for script in sorted(ROOT.glob("data/*/prepare.py"))]
    return {key for config_class in classes for key in config_class.__dataclass_fields__}


@pytest.mark.parametrize("page", PAGES)
def test_keys_that_are_named(page, monkeypatch):
    """Options of any script, keys of a model and its training, and the parts that a model can have."""
    text = BLOCK.sub("", TEXTS[page])
    families = "cf|cffn|cattn|ladder|dyadic|token|key|expe|exqpe|rope|synthesizer|bigbird|muon|wsd|saffu"
    parts = {"attention": layers.ATTENTION, "ffn": layers.FFN, "position": layers.POSITION}
    known = all_keys(monkeypatch) | {name for registry in parts.values() for name in registry}
    known |= foreign_keys.TRAINING.keys()
    named = re.findall(rf"`(?:--)?((?:{families})_\w+)(?:=[^`]*)?`", text)
    named += [key for key in re.findall(r"`--(\w+)", text) if key not in ("key", "help", *OF_TORCHRUN)]
    assert {name for name in named if name not in known and not name.endswith("_")} == set()
    for key, value in re.findall(r"`(?:--)?(attention|ffn|position)=(\w+)`", text):
        assert value in parts[key], f"{key}={value}"


def block_of(page: str, words: str) -> str:
    """The one block of code with these words."""
    (found,) = (block for _, block in BLOCK.findall(TEXTS[page]) if words in block)
    return found


def test_the_modules_of_the_recipe(run, monkeypatch):
    """They train from the values that their constructors gave, see no later token, and decode."""
    made = {}
    for name in ('class Mine(ChannelMixer):\n    """', "class RunningMean"):
        exec(block_of("docs/extending.md", name), made)
    monkeypatch.setitem(layers.FFN, "mine", made["Mine"])
    monkeypatch.setitem(layers.ATTENTION, "running_mean", made["RunningMean"])
    keys = ("--ffn=mine", "--attention=running_mean", "--position=sinusoidal")
    folder, records = run("mine", *keys, "--learning_rate=3e-2")
    training = [record["loss"] for record in records if "loss" in record]
    assert training[-1] < training[0] - 0.5
    model = pretrained.build(pretrained.open_source(str(folder))).eval()
    with torch.no_grad():
        tokens = torch.arange(12)[None] % 7
        seen = model(tokens)
        changed = tokens.clone()
        changed[:, -1] = 9
        assert torch.equal(model(changed)[:, :-1], seen[:, :-1])
        assert not torch.equal(model(changed)[:, -1], seen[:, -1])
        written = [3, 1, *model.generate([3, 1], 6, temperature=0)]
        assert model(torch.tensor([written]))[0, 1:-1].argmax(-1).tolist() == written[2:]
    state = block_of("docs/extending.md", "cache_rows")
    exec("class Recurrent(RunningMean):\n" + textwrap.indent(textwrap.dedent(state), "    "), made)
    monkeypatch.setitem(layers.ATTENTION, "recurrent", made["Recurrent"])
    pattern = dataclasses.replace(model.config, n_layer=3, attention="recurrent,recurrent,softmax")
    mixed = GPT(pattern).init_weights().eval()
    cache = mixed.new_cache(2)
    with torch.no_grad():
        for tokens in torch.randint(20, (2, 2, 12)):
            cache.clear()  # of the text before, whose state remains
            whole = mixed.logits(mixed.hidden(tokens))
            for piece, end in (([0, 1, 2], 3), ([3], 4), ([*range(4, 12)], 12)):
                found = mixed.decode(tokens[:, piece], cache)
                torch.testing.assert_close(found, whole[:, end - 1], rtol=1e-4, atol=1e-5)
    softmax = dataclasses.replace(model.config, n_layer=1, attention="softmax")
    assert cache_bytes_per_token(pattern) == cache_bytes_per_token(softmax)
    with torch.device("meta"):
        drawn = GPT(model.config)
    drawn.to_empty(device="cpu").init_weights()
    assert all(torch.equal(block.ffn.scale, torch.ones(128)) for block in drawn.blocks)


def test_the_pattern_of_the_recipe(tiny, monkeypatch):
    made, keys = {}, {}
    exec(block_of("docs/extending.md", "class RunningMean"), made)
    exec(block_of("docs/extending.md", '"running_mean,softmax"'), {}, keys)
    monkeypatch.setitem(layers.ATTENTION, "running_mean", made["RunningMean"])
    assert tiny(**keys).check() == []
    assert "acts on queries and keys" in tiny(**keys | {"attention": "running_mean"}).check()[0]


class Theirs(torch.nn.Module):
    """In place of a layer of flash-linear-attention: Linear layers, a parameter, a tuple."""

    def __init__(self, hidden_size, num_heads, norm_eps):
        super().__init__()
        self.v_proj = torch.nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = torch.nn.Linear(hidden_size, hidden_size, bias=False)
        self.rate = torch.nn.Parameter(torch.full((num_heads,), 0.5))

    def forward(self, x):
        if x.is_meta:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self.o_proj(self.v_proj(x).cumsum(1) * self.rate.mean()), None, None


def test_the_layer_of_a_package(run, tiny, monkeypatch):
    """The class of the page trains and decodes, with a layer for CPUs in the package's place."""
    monkeypatch.setitem(sys.modules, "fla", types.ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.layers", types.SimpleNamespace(GatedLinearAttention=Theirs))
    made = {"nn": torch.nn}
    exec(block_of("docs/extending.md", "class FlaGLA"), made)
    monkeypatch.setitem(layers.ATTENTION, "fla_gla", made["FlaGLA"])
    assert "n_embd=25" in tiny(attention="fla_gla", n_embd=25, position="none").check()[0]
    assert run("theirs", "--attention=fla_gla,softmax", "--position=none", "--max_iters=2")[1]
    config = tiny(attention="fla_gla", position="none")
    weights = 2 * 24 * 24 + 3
    assert made["FlaGLA"].flops_per_token(config, 9) == 2 * weights + 4 * 3 * 4 * 8
    drawn = GPT(config).init_weights().blocks[0].attention.layer
    assert (drawn.rate == 0.5).all()
    assert drawn.v_proj.weight.std() < 0.03
    exec(
        "class Own(FlaGLA):\n" + textwrap.indent(block_of("docs/extending.md", "of FlaGLA;"), "    "), made
    )
    monkeypatch.setitem(layers.ATTENTION, "fla_gla", made["Own"])
    assert GPT(config).init_weights().blocks[0].attention.layer.v_proj.weight.std() > 0.1
    monkeypatch.delattr(made["FlaGLA"], "flops_per_token")
    assert config.check()[0].endswith("define flops_per_token")
