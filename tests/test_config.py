"""Every config file: its head, its figures, and that it trains."""

import dataclasses
import re
from fractions import Fraction
from pathlib import Path

import pytest

from architecture import ModelConfig, model_config
from configurator import resolve
from data import mixture
from layers import POSITION
from model import flops_per_token, parameter_counts
from results import trainability_studies as study
from training.config import TrainConfig

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "config").rglob("*.py"))
FINE_TUNING = ["config/finetune_text.py", "config/glue.py"]  # of finished models: tests/finetuning
ON_TOP = ("/size/", "/ablate/", "/study/")
MODELS = [name for name in FILES if name not in FINE_TUNING and not any(part in name for part in ON_TOP)]
STUDY = [name for name in FILES if "/study/" in name]
ON_A_MODULE = {"paper": "cffn_gated"}
ON_A_MODULE |= dict.fromkeys(("control", "constant", "depth_1"), "cattn_m")
ABLATIONS = [name for name in FILES if "/ablate/" in name]
EXPE = [name for name in MODELS if "/paper/expe/" in name]
LLAMA = [name for name in MODELS if "/paper/llama" in name]
PAPER = [name for name in MODELS if "/paper/" in name and name not in EXPE + LLAMA]


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", FILES)
def test_its_head_tells_how_to_run_it(name):
    head = (ROOT / name).read_text().split('\nout_dir = "')[0]
    script = "finetune" if name == "config/glue.py" else "train"
    assert re.search(rf"\b{script}\.py .*{re.escape(name)}", head)
    assert name not in [*MODELS, *FINE_TUNING] or "What to expect" in head


def model(*files) -> ModelConfig:
    config = resolve(ModelConfig, list(files))
    config.vocab_size = config.vocab_size or 50257
    return config


def test_llama():
    counts = {
        name: sum(parameter_counts(model(f"config/llama_3b{name}.py")).values())
        for name in ("", "_cofrgenet_f", "_cofrgenet_a", "_cofrgenet")
    }
    assert counts[""] == 3_212_749_824
    assert counts["_cofrgenet"] < counts["_cofrgenet_f"] < counts["_cofrgenet_a"] < counts[""]


@pytest.mark.parametrize("size", ["", "small", "medium", "large", "xl"])
def test_shares_of_the_dense_parameters(size):
    """What the claim allows, without embeddings and positions: F 0.67, A 0.8, both 0.55."""
    overlay = [f"config/size/{size}.py"] if size else []

    def body(name):
        counts = parameter_counts(model(f"config/{name}.py", *overlay))
        return sum(counts.values()) - counts["embedding"] - counts["position"]

    for name, share in (("cofrgenet_f", 0.67), ("cofrgenet_a", 0.8), ("cofrgenet", 0.55)):
        assert body(name) <= share * body("gpt2_xl"), name


@pytest.mark.parametrize("name", STUDY)
def test_arms_of_the_study(name):
    """Each is another model than the base, by keys that it reads, or the base at another learning rate."""
    module = ON_A_MODULE.get(Path(name).stem)
    modules = [f"config/study/{module}.py"] if module else []
    base, arm = model("config/study/dense.py"), model("config/study/dense.py", *modules, name)
    assert (arm == base) == (name == "config/study/dense.py" or "/rate_" in name)
    assert not arm.without_effect()


@pytest.mark.parametrize(
    ("modules", "recipe"),
    [
        (["cffn_gated"], "cofrgenet_f"),
        (["cffn_product"], "iclr_cofrgenet_f"),
        (["cattn_m"], "cofrgenet_a"),
        (["cattn_m", "cffn_gated"], "cofrgenet"),
    ],
)
def test_the_studys_papers_are_the_papers(modules, recipe):
    """The model and the treatment of its ladders, at another size."""
    files = [f"config/study/{name}.py" for name in ("dense", *modules, "paper")]
    ours, theirs = resolve(TrainConfig, files), resolve(TrainConfig, [f"config/paper/{recipe}.py"])
    for key in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
        setattr(ours, key, getattr(theirs, key))
    assert model_config(ours) == model_config(theirs)
    for key in [field.name for field in dataclasses.fields(TrainConfig)]:
        if "dyadic" in key or "ladder" in key or key in ("weight_decay", "grad_clip"):
            assert getattr(ours, key) == getattr(theirs, key), key


def test_the_study_names_its_arms():
    named = [text for calls in study.STUDIES.values() for call in calls for text in call]
    arms = {text for text in named if not text.startswith("--")}
    assert {file for arm in arms for file in arm.split("+")} <= set(STUDY)
    for arm in arms:
        built = model(*arm.split("+"))
        assert not built.without_effect(), arm
        if arm.endswith(("control.py", "constant.py")):
            assert not built.has_ladders
            assert dataclasses.replace(built, cf_control=False, cf_control_constant=False).has_ladders
    for ours, other in study.SAME.items():
        one, two = (parameter_counts(model(*study.on_base(name)[0].split("+"))) for name in (ours, other))
        assert one == two


@pytest.mark.parametrize("name", MODELS)
def test_figures_in_its_head_are_true(name):
    config = model(name)
    head = (ROOT / name).read_text()
    for claimed in re.findall(r"expect: ([\d,]+) parameters", head):
        assert int(claimed.replace(",", "")) == sum(parameter_counts(config).values())
    for claimed in re.findall(r"([\d,]+) without the embedding", head):
        counts = parameter_counts(config)
        assert int(claimed.replace(",", "")) == sum(counts.values()) - counts["embedding"]
    dense = model("config/llama_3b.py" if "llama" in name else "config/gpt2_xl.py")
    for claimed in re.findall(r"([\d.]+) of the dense FLOPs", head):
        assert float(claimed) == pytest.approx(flops_per_token(config) / flops_per_token(dense), abs=5e-3)


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_what_it_names_and_nothing_else(name):
    """On top of the model that its head names, and the loss is another from some step on."""
    text = (ROOT / name).read_text()
    (base,) = re.findall(rf"train\.py (\S+) {re.escape(name)}", text)
    before, after = (dataclasses.asdict(resolve(TrainConfig, files)) for files in ([base], [base, name]))
    changed = {key for key in before if before[key] != after[key]}
    assigned = set(re.findall(r"^(\w+) =", text, re.MULTILINE))
    assert changed <= assigned
    assert len(assigned) == 1
    assert changed or name.endswith("_7.py")  # the paper's recipes here have seven


def test_ablations_are_what_their_names_say():
    values = {
        **{f"depth_{n}": ("cf_depth", n) for n in (1, 3, 5, 7)},
        **{f"ladders_{n}": ("cf_ladders", n) for n in (1, 3, 5, 7)},
        "no_dyadic": ("dyadic", False),
        "cattn_u": ("attention", "cattn_u"),
        "muon": ("optimizer", "muon"),
        "gneissweb": ("dataset", "data/gneissweb/gpt2"),
        "ladder_form": ("cf_impl", "ladder"),
        "expe_half": ("expe_inference_scale", 0.5),
        "expe_learned": ("expe_learned", "random"),
        "expe_learned_standard": ("expe_learned", "standard"),
        "expe_on_v": ("expe_on_v", True),
        "expe_once": ("expe_once", True),
        "expe_one": ("expe_width", 1),
        "expe_stable": ("expe_stable", True),
    }
    assert {Path(name).stem for name in ABLATIONS} == set(values)
    for name, (key, value) in values.items():
        assert getattr(resolve(TrainConfig, [f"config/ablate/{name}.py"]), key) == value


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("expe_half", "paper/expe/medium_expe"),
        ("ladder_form", "paper/cofrgenet"),
        ("expe_one", "paper/expe/35m_expe"),
    ],
)
def test_an_ablation_stands_on_the_model_of_its_table(name, base):
    assert f"train.py config/{base}.py" in (ROOT / f"config/ablate/{name}.py").read_text()


@pytest.mark.parametrize("name", [*MODELS, *ABLATIONS])
def test_it_trains_at_a_tiny_size(name, dataset, tmp_path):
    """Two steps with everything else as it stands."""
    from train import main

    base = re.findall(rf"train\.py (\S+) {re.escape(name)}", (ROOT / name).read_text())
    files = [*base, name] if name in ABLATIONS else [name]
    heads = [] if "count_matched" not in name or name.endswith("_f.py") else ["--cattn_heads=2"]
    main([
        *files, *heads, "config/size/tiny.py", f"--dataset={dataset}", f"--out_dir={tmp_path / 'out'}",
        "--batch_size=1", "--gradient_accumulation_steps=2", "--max_iters=2", "--warmup_iters=1",
        "--eval_tokens=256",
        "--compile=False", "--device=cpu", "--block_size=64",
    ])  # fmt: skip
    assert (tmp_path / "out" / "ckpt" / "step_00000002.pt").is_file()


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_are_to_the_letter(name):
    config = resolve(TrainConfig, [name])
    shape = (config.n_layer, config.n_head, config.n_embd, config.block_size)
    assert shape == (48, 25, 1600, 1024)
    assert (config.learning_rate, config.min_lr, config.weight_decay) == (6e-4, 6e-5, 0.1)
    assert (config.max_iters, config.warmup_iters, config.dropout) == (600_000, 2000, 0.0)
    assert (config.beta1, config.beta2, config.grad_clip, config.lr_schedule) == (0.9, 0.95, 1.0, "cosine")
    assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 491_520
    assert config.gradient_accumulation_steps % 16 == 0
    if config.attention.startswith("cattn") or config.ffn.startswith("cffn"):  # no baseline
        assert config.dyadic
        assert config.decay_ladders
        assert config.cf_eval_clip
        assert (config.cf_pole, config.cf_eps, config.cf_init) == ("clamp", 0.01, "nanogpt")
        assert (config.cf_pole_grad, config.cf_impl) == ("formula", "continuant")
        if name.endswith("/count_matched.py"):
            return
        assert config.cf_ladders in (1, 3, 5, 7)
        assert config.cf_depth in (1, 3, 5, 7)


def test_the_papers_sparse_attention():
    config = resolve(TrainConfig, ["config/paper/sparse.py"])
    pattern = (config.bigbird_global, config.bigbird_window, config.bigbird_random, config.bigbird_block)
    assert (config.attention, pattern) == ("bigbird", (1, 3, 3, 64))


@pytest.mark.parametrize("name", LLAMA)
def test_the_papers_llamas_are_to_the_letter(name):
    config = resolve(TrainConfig, [name])
    assert (config.n_layer, config.n_head, config.n_embd, config.norm) == (28, 24, 3072, "rmsnorm")
    assert (config.learning_rate, config.max_iters, config.dropout) == (3e-4, 2_000_000, 0.0)
    assert (config.min_lr, config.lr_schedule) == (3e-5, "cosine")
    if config.attention == "softmax":
        rope = (config.position, config.rope_base, config.rope_scaling)
        assert (rope, config.n_kv_head) == (("rope", 500_000, "llama3"), 8)
    tokens = config.batch_size * config.gradient_accumulation_steps * config.block_size * config.max_iters
    assert tokens == pytest.approx(2e12, rel=0.05)
    assert mixture.parse(config.dataset)[1].weights[0] == Fraction(24, 100)
    if "cofrgenet" in name:
        assert (config.dyadic, config.decay_ladders, config.cf_eval_clip) == (True, True, True)
        assert (config.cf_pole, config.cf_eps, config.cf_init) == ("clamp", 0.01, "nanogpt")


@pytest.mark.parametrize("name", EXPE)
def test_recipes_of_the_expe_paper(name):
    config = resolve(TrainConfig, [name])
    size, position = Path(name).stem.split("_")
    shapes = {"35m": (6, 8, 512, 32_000), "small": (12, 12, 768, 32_768), "medium": (24, 16, 1024, 32_768)}
    assert (config.n_layer, config.n_head, config.n_embd, config.vocab_size) == shapes[size]
    assert (config.position, config.block_size) == (position, 512)
    tokens = config.batch_size * config.gradient_accumulation_steps * 512 * config.max_iters
    assert tokens == pytest.approx(600e6 if size == "35m" else 10e9, rel=1e-3)
    assert config.learning_rate == (3e-4 if size == "medium" else 6e-4)
    assert config.min_lr == pytest.approx(config.learning_rate / 10)
    assert config.dataset == f"data/{'fineweb/bpe32000' if size == '35m' else 'fineweb_edu/bpe32768'}"
    llama = (config.norm, config.ffn) == ("rmsnorm", "swiglu")
    assert llama == (size != "35m")
    assert config.tie_embeddings == (size != "small")
    if position in ("expe", "exqpe"):
        # 512 tokens take the first column from 0 to 1/4: the default here too, as is l
        assert (config.expe_start, config.expe_theta, config.expe_width) == (0, 1 / 2048, None)
        default = dataclasses.replace(model_config(config), expe_theta=None)
        assert POSITION[position].constants(default) == POSITION[position].constants(config)
        assert POSITION[position](config).width == config.n_embd // 16


def test_the_expe_paper_is_complete():
    names = {Path(name).stem for name in EXPE}
    positions = ("rope", "expe", "exqpe", "sinusoidal")
    assert names == {f"{size}_{p}" for size in ("35m", "small", "medium") for p in positions}
