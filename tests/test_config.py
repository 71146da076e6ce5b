"""Every config file: its head, its figures, and that it trains."""

import dataclasses
import re
from fractions import Fraction
from pathlib import Path

import pytest

from configurator import resolve
from corpus import mixture
from models.architecture import ModelConfig, model_config
from models.kinds import flops_per_token, parameter_counts
from results.trainability import studies as study
from tests.config_files import (
    ABLATIONS,
    FILES,
    FINE_TUNING,
    MODELS,
    ROOT,
    SAFFU,
    STUDY,
    model,
)
from training.config import TrainConfig

ON_MODULES = {"paper": "cffn_gated", "recipe": "cffn_gated"}
ON_MODULES |= dict.fromkeys(("control", "constant", "depth_1", "strict", "cattn_m_third"), "cattn_m")
PLACES = ("third", "second", "first", "last")
ON_MODULES |= {f"softmax_{place}": "full_content" for place in PLACES}
SIZES = ("small", "medium", "large", "xl")


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", FILES)
def test_its_head_tells_how_to_run_it(name):
    head = (ROOT / name).read_text().split('\nout_dir = "')[0]
    script = "finetune" if name == "config/glue.py" else "train"
    one_line = re.sub(r"\\\n# *", "", head)
    assert re.search(rf"\b{script}\.py .*{re.escape(name)}", one_line)
    assert name not in [*MODELS, *FINE_TUNING] or "What to expect" in head


def test_llama():
    counts = {
        name: sum(parameter_counts(model(f"config/llama_3b{name}.py")).values())
        for name in ("", "_cofrgenet_f", "_cofrgenet_a", "_cofrgenet")
    }
    assert counts[""] == 3_212_749_824
    assert counts["_cofrgenet"] < counts["_cofrgenet_f"] < counts["_cofrgenet_a"] < counts[""]


def test_llama_8b():
    """The published number of parameters; the F differs in the feed-forward layers alone."""
    dense, other = (model(f"config/llama_8b{name}.py") for name in ("", "_cofrgenet_f"))
    one, two = parameter_counts(dense), parameter_counts(other)
    assert sum(one.values()) == 8_030_261_248
    assert {part for part in one if one[part] != two[part]} == {"ffn"}
    assert (dense.ffn_hidden, dense.rope_factor, dense.tie_embeddings) == (14_336, 8.0, False)
    recipes = [resolve(TrainConfig, [f"config/llama_{size}.py"]) for size in ("8b", "8b_cofrgenet_f", "3b")]
    tokens = {c.batch_size * c.gradient_accumulation_steps * c.block_size * c.max_iters for c in recipes}
    assert len(tokens) == 1


@pytest.mark.parametrize("size", ["", *SIZES])
def test_ours_have_the_claims_shares_of_the_dense_parameters(size):
    """Without embeddings and positions: a unit with ladders 0.67, ladder attention 0.8, both 0.55."""
    overlay = [f"config/size/{size}.py"] if size else []

    def body(name):
        counts = parameter_counts(model(f"config/{name}.py", *overlay))
        return sum(counts.values()) - counts["embedding"] - counts["position"]

    for name, share in (("glu_ladders", 0.67), ("ladder_attention", 0.8), ("ladder_full", 0.55)):
        assert 0.75 * share * body("gpt2_xl") < body(f"ours/{name}") <= share * body("gpt2_xl"), name


# what a model is, whatever its size: keys of its definition; depth and inner width, in the dense model's
DEFINED = {
    "cofrgenet_f": ({"ffn": "cffn_gated", "cffn_gate": "self", "position": "learned"}, 1, None),
    "cofrgenet_a": ({"attention": "cattn_m", "position": "learned"}, 1, None),
    "cofrgenet": ({"attention": "cattn_m", "ffn": "cffn_gated", "cffn_gate": "self"}, 1, None),
    "ours/glu_ladders": ({"cffn_gate": "glu_collapsed", "position": "rope"}, 1, 1.25),
    "ours/ladder_attention": ({"cattn_content": True, "ffn": "mlp", "cattn_value_heads": 1}, 1, None),
    "ours/ladder_full": ({"cattn_content": True, "ffn": "cffn_added"}, 1.2, None),
    "gpt2_xl": ({"attention": "softmax", "ffn": "mlp", "position": "learned"}, 1, None),
    "modern": (
        {"mlp_activation": "relu2", "qk_norm": True, "norm": "rmsnorm", "position": "rope"},
        1,
        None,
    ),
    "hybrid/modern_cofrgenet_f": ({"ffn": "cffn_gated", "qk_norm": True, "position": "rope"}, 1, None),
    "synthesizer_d": ({"attention": "synthesizer", "ffn": "mlp"}, 1, None),
    "bigbird": ({"attention": "bigbird", "ffn": "mlp"}, 1, None),
    "gated_deltanet": ({"attention": "gated_deltanet", "ffn": "mlp", "position": "none"}, 1, None),
    "translation": ({"attention": "softmax", "ffn": "mlp", "position": "sinusoidal"}, 1, None),
    "llama_3b": ({"ffn": "swiglu", "norm": "rmsnorm"}, 1, None),
    "llama_3b_cofrgenet_f": ({"ffn": "cffn_gated", "cffn_gate": "self", "position": "rope"}, 1, None),
    "llama_3b_cofrgenet_a": ({"attention": "cattn_m", "ffn": "swiglu", "position": "none"}, 1, None),
    "llama_3b_cofrgenet": ({"attention": "cattn_m", "ffn": "cffn_gated", "position": "none"}, 1, None),
    "llama_8b": ({"ffn": "swiglu", "norm": "rmsnorm", "tie_embeddings": False}, 1, 3.5),
    "llama_8b_cofrgenet_f": ({"ffn": "cffn_gated", "cffn_gate": "self", "tie_embeddings": False}, 1, None),
    "ours/llama_3b_glu_ladders": ({"cffn_gate": "glu_collapsed", "position": "rope"}, 1, 1.25),
    "ours/llama_3b_ladder_attention": ({"cattn_content": True, "ffn": "swiglu"}, 1, None),
    "ours/llama_3b_ladder_full": ({"cattn_content": True, "ffn": "cffn_added"}, 1.2, None),
    "hybrid/ours": ({"cattn_content": True, "ffn": "cffn_added", "position": "none"}, 1.2, None),
    "hybrid/cofrgenet": ({"ffn": "cffn_gated", "cffn_gate": "self", "position": "learned"}, 1, None),
    "hybrid/gated_deltanet": ({"ffn": "mlp", "position": "none"}, 1, None),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DEFINED)
def test_a_size_makes_no_other_model(name, size):
    """Also where the overlay stands before the model; shapes are the dense one's of this size, but for its
    definition's depth and width.
    """
    keys, layers, hidden = DEFINED[name]
    overlay, own = f"config/size/{size}.py", f"config/{name}.py"
    dense, built = model("config/gpt2_xl.py", overlay), model(own, overlay)
    alone = model(own)
    for key, value in keys.items():
        assert getattr(built, key) == value == getattr(alone, key)
    assert (built.n_embd, built.n_head, built.block_size) == (dense.n_embd, dense.n_head, dense.block_size)
    assert abs(built.n_layer - layers * dense.n_layer) <= built.period / 2
    assert built.n_layer % built.period == 0
    assert built.ffn_hidden == (None if hidden is None else hidden * dense.n_embd)
    shape = {"n_layer", "n_head", "n_kv_head", "n_embd", "block_size", "ffn_hidden"}
    one, other = dataclasses.asdict(built), dataclasses.asdict(alone)
    assert {key for key in one if one[key] != other[key]} <= shape


@pytest.mark.parametrize(
    ("name", "layers", "before"),
    [
        ("ours", 3, "ours/ladder_full"),
        ("cofrgenet", 3, "cofrgenet"),
        ("gated_deltanet", 4, "gated_deltanet"),
    ],
)
def test_a_hybrid_differs_in_its_attention_alone(name, layers, before):
    """The keys of the model without softmax attention, in whole patterns, at a tiny size too; ours has keys
    that hold the token before.
    """
    tiny = "config/size/tiny.py"
    hybrid, whole = model(f"config/hybrid/{name}.py", tiny), model(f"config/{before}.py", tiny)
    assert hybrid.n_layer == layers
    assert hybrid.names("attention") == [*(layers - 1) * [whole.attention], "softmax"]
    assert hybrid.token_shift == (name == "ours")
    same = {"attention": whole.attention, "n_layer": whole.n_layer, "token_shift": False}
    assert dataclasses.replace(hybrid, **same) == whole
    recipes = [resolve(TrainConfig, [f"config/{one}.py"]) for one in (f"hybrid/{name}", before)]
    own = {"attention", "n_layer", "out_dir"}
    own = own | {"token_shift"} if name == "ours" else own - {"n_layer"}
    assert {key for key, value in vars(recipes[0]).items() if value != getattr(recipes[1], key)} == own


def test_every_model_has_a_definition():
    elsewhere = ("/paper/", "/report/", "demo")
    named = {name for name in MODELS if not any(part in name for part in elsewhere)}
    assert named - {"config/gpt2.py", "config/saffu.py"} == {f"config/{name}.py" for name in DEFINED}


@pytest.mark.parametrize("name", STUDY)
def test_arms_of_the_study(name):
    """Each is another model than the base, by keys that it reads, or the base at another learning rate."""
    modules = [f"config/study/{module}.py" for module in ON_MODULES.get(Path(name).stem, "").split()]
    base, arm = model("config/study/dense.py"), model("config/study/dense.py", *modules, name)
    assert (arm == base) == (name == "config/study/dense.py" or "/rate_" in name)
    assert not arm.unused_keys()


@pytest.mark.parametrize(
    ("modules", "recipe"),
    [
        (["cffn_gated"], ["cofrgenet_f"]),
        (["cffn_product"], ["cofrgenet_f", "ablate/iclr"]),
        (["cattn_m"], ["cofrgenet_a"]),
        (["cattn_m", "cffn_gated"], ["cofrgenet"]),
    ],
)
def test_the_studys_papers_are_the_papers(modules, recipe):
    """The model and the treatment of its ladders as printed, at another size."""
    files = [f"config/study/{name}.py" for name in ("dense", *modules, "paper")]
    theirs = resolve(TrainConfig, [f"config/{name}.py" for name in (*recipe, "ablate/as_printed")])
    ours = resolve(TrainConfig, [*files, "--cattn_strict=True", f"--cattn_scores={theirs.cattn_scores}"])
    for key in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
        setattr(ours, key, getattr(theirs, key))
    assert model_config(ours) == model_config(theirs)
    for key in [field.name for field in dataclasses.fields(TrainConfig)]:
        if "dyadic" in key or "ladder" in key or key in ("weight_decay", "grad_clip"):
            assert getattr(ours, key) == getattr(theirs, key), key


@pytest.mark.parametrize(
    ("modules", "name"),
    [
        (["cffn_gated"], "cofrgenet_f"),
        (["cattn_m_collapsed"], "cofrgenet_a"),
        (["cattn_m_collapsed", "cffn_gated"], "cofrgenet"),
    ],
)
def test_the_studys_claim_is_of_the_configs(modules, name):
    """The model and the schedule, at another size."""
    config = resolve(TrainConfig, [f"config/{name}.py"])
    files = [f"config/study/{part}.py" for part in ("dense", *modules, "recipe")]
    arm = resolve(TrainConfig, [*files, f"--cattn_strict={config.cattn_strict}"])
    for key in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
        setattr(arm, key, getattr(config, key))
    assert model_config(arm) == model_config(config)
    assert (arm.dyadic, arm.decay_ladders) == (config.dyadic, config.decay_ladders)


def test_the_study_names_its_arms():
    named = [text for calls in study.STUDIES.values() for call in calls for text in call]
    arms = {text for text in named if not text.startswith("--")}
    assert {file for arm in arms for file in arm.split("+")} <= set(STUDY)
    for arm in arms:
        built = model(*arm.split("+"))
        assert not built.unused_keys(), arm
        if arm.endswith(("control.py", "constant.py")):
            assert not built.has_ladders
            assert dataclasses.replace(built, cf_control="none").has_ladders
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
    sizes = {"llama_8b": "llama_8b", "llama": "llama_3b"}
    dense = model(f"config/{next((d for part, d in sizes.items() if part in name), 'gpt2_xl')}.py")
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
    assert len(assigned) == (6 if name.endswith("as_printed.py") else 1)
    assert changed


def model_of(ablation):
    needed = ["--ffn=cffn_gated"] if ablation == "as_printed" else []
    needed += ["--model=saffu"] if "saffu" in ablation else []
    return resolve(TrainConfig, [f"config/ablate/{ablation}.py", *needed])


def test_ablations_are_what_their_names_say():
    values = {
        "no_dyadic": ("dyadic", False),
        "as_printed": ("cf_pole", "clamp"),
        "iclr": ("ffn", "cffn_product"),
        "cattn_u": ("attention", "cattn_u"),
        "muon": ("optimizer", "muon"),
        "value_embeddings": ("value_embeddings", True),
        "windows": ("attention", ",".join([*3 * ["sliding_window"], "softmax"])),
        "gneissweb": ("dataset", "data/gneissweb/gpt2"),
        "ladder_form": ("cf_impl", "ladder"),
        "rank": ("cattn_scores", "rank"),
        "depth_with_w0": ("cf_depth", 6),
        "rope_500000": ("rope_base", 500_000.0),
        "expe_half": ("expe_inference_scale", 0.5),
        "expe_learned": ("expe_learned", "random"),
        "expe_learned_standard": ("expe_learned", "standard"),
        "expe_on_v": ("expe_on_v", True),
        "expe_once": ("expe_once", True),
        "expe_one": ("expe_width", 1),
        "expe_stable": ("expe_stable", True),
        "saffu_cold": ("saffu_init", "random"),
        "saffu_sum": ("saffu_radius_mode", "sum"),
        "saffu_cat": ("saffu_block_mode", "cat"),
    }
    assert {Path(name).stem for name in ABLATIONS} == {*values, "docling_mix"}
    assert mixture.parse(model_of("docling_mix").dataset)[1].weights[0] == Fraction(24, 100)
    for name, (key, value) in values.items():
        assert getattr(model_of(name), key) == value


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("expe_half", "paper/expe/medium_expe"),
        ("ladder_form", "cofrgenet"),
        ("rank", "cofrgenet_a"),
        ("expe_one", "paper/expe/35m_expe"),
    ],
)
def test_an_ablation_stands_on_the_model_of_its_table(name, base):
    assert f"train.py config/{base}.py" in (ROOT / f"config/ablate/{name}.py").read_text()


@pytest.mark.parametrize("name", [*MODELS, *ABLATIONS])
def test_it_trains_at_a_tiny_size(name, dataset, paired, tmp_path):
    """Two steps with everything else as it stands, but for a vocabulary of that size."""
    from train import main

    base = re.findall(rf"train\.py (\S+) {re.escape(name)}", (ROOT / name).read_text())
    files = [*base, name] if name in ABLATIONS else [name]
    size = ["config/size/tiny.py"] if name not in SAFFU else ["--saffu_tokens=4096", "--saffu_tuning=0"]
    size = ["--saffu_tokens=4096"] if name == "config/ablate/saffu_cold.py" else size
    size = [*size, "--n_layer=4"] if name == "config/ablate/windows.py" else size
    if resolve(ModelConfig, files).encoder_layers:
        size, dataset = [*size, "--encoder_layers=1"], paired
    main([
        *files, *size, f"--dataset={dataset}", f"--out_dir={tmp_path / 'out'}",
        "--batch_size=1", "--gradient_accumulation_steps=2", "--max_iters=2", "--warmup_iters=1",
        "--eval_tokens=256",
        "--compile=False", "--device=cpu", "--block_size=64", "--vocab_size=320",
    ])  # fmt: skip
    assert (tmp_path / "out" / "ckpt" / "step_00000002.pt").is_file()
