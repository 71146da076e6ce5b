"""A config and a number of parameters -> depth, width and heads."""

import dataclasses
from pathlib import Path

import pytest

import configurator
from models.architecture import ModelConfig
from scaling.sizing import Size, body, parse, resized, shape
from training.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
STUDY = "config/study/dense.py"
NO_SIZES = ("glue.py", "finetune_text.py", "saffu.py")  # no models, or models without depth and width
RECIPES = ("paper.py", "recipe.py")  # of models with ladders


def stacks():
    """Every model in config/, and every overlay of the study on its dense model."""
    folders = ("*.py", "ours/*.py", "hybrid/*.py", "paper/**/*.py", "study/*.py")
    for pattern in (f"config/{files}" for files in folders):
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            if path.parent.name == "study" and path.name not in RECIPES and name != STUDY:
                yield f"{STUDY}+{name}"
            elif path.parent.name != "study" and path.name not in NO_SIZES:
                yield name
    yield f"{STUDY}+config/study/full_relative_content_nopos.py+config/study/constant.py"
    yield f"{STUDY}+config/study/full.py+config/study/recipe.py"


def model_of(stack):
    config = configurator.resolve(TrainConfig, configurator.stacked(stack))
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    return ModelConfig(**{name: getattr(config, name) for name in names} | {"block_size": 256})


def test_sizes_as_one_writes_them():
    assert [parse(text) for text in ("250K", "0.25m", "250000", ".25M:2")] == [
        *[Size(250_000)] * 3,
        Size(250_000, 2),
    ]
    labels = [Size(n).label for n in (250_000, 1_000_000, 1_500_000_000, 64_000, 999)]
    assert labels == ["0.25M", "1M", "1.5B", "64K", "999"]
    for text in ("big", "1T", "", "0M", "1M:0", "1M:x", "-1M"):
        with pytest.raises(ValueError, match=r"is no size|above 0"):
            parse(text)


def test_the_study_s_own_model_is_found_again():
    base = model_of(f"{STUDY}+config/study/rope.py")
    found = shape(base, body(base))
    assert (found.n_layer, found.n_embd, found.n_head) == (5, 128, 4)
    assert found == base


@pytest.mark.parametrize("stack", stacks())
def test_every_config_has_every_size(stack):
    base = model_of(stack)
    for target in (250_000, 8_000_000):
        model = shape(base, target)
        assert abs(body(model) / target - 1) <= 0.05
        assert model.check() == []
        assert model.n_embd % model.n_head == 0
        sized = {
            "n_layer",
            "n_embd",
            "n_head",
            "n_kv_head",
            "cattn_heads",
            "cattn_value_heads",
            "ffn_hidden",
        }
        differing = {k for k, v in vars(model).items() if v != getattr(base, k)}
        assert differing <= sized


def test_shapes_stay_alike():
    """Aspect ratio and head width stay within a quarter of the config's."""
    base = model_of("config/gpt2.py")
    for target in (3_000_000, 20_000_000, 85_000_000, 1_000_000_000):
        model = shape(base, target)
        assert 0.8 < model.n_embd / model.n_layer / 64 < 1.25
        assert 0.8 < model.n_embd / model.n_head / 64 < 1.25


def test_what_scales_with_width_and_heads():
    base = ModelConfig(n_layer=4, n_head=8, n_embd=256, n_kv_head=2, ffn_hidden=384, cattn_heads=8)
    base.cattn_value_heads = 1
    model = resized(base, 2, 64, 4)
    assert (model.ffn_hidden, model.n_kv_head, model.cattn_heads, model.cattn_value_heads) == (96, 1, 4, 1)


def test_columns_of_positions_count():
    base = model_of(f"{STUDY}+config/study/cattn_m.py")
    longer = dataclasses.replace(base, block_size=1024)
    assert body(longer) > body(base)
    assert shape(longer, 1_000_000).n_embd < shape(base, 1_000_000).n_embd


def test_a_size_that_no_shape_has():
    base = model_of(f"{STUDY}+config/study/cattn_u.py")
    with pytest.raises(ValueError, match=r"within 5% of 300 parameters"):
        shape(base, 300)
