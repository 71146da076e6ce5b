"""Config files that bear a paper's name: to the letter, or as their heads say."""

import dataclasses
import re
from pathlib import Path

import pytest

from configurator import resolve
from layers import POSITION
from models.architecture import model_config
from models.kinds import parameter_counts
from tests.config_files import COFRGENETS, EXPE, PAPER, REPORT, ROOT, model
from training.config import TrainConfig


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("name", COFRGENETS)
def test_the_papers_models_depart_from_print_in_their_poles_alone(name):
    """Intercepts at 1, where print says nothing."""
    found = resolve(TrainConfig, [name])
    printed = resolve(TrainConfig, [name, "config/ablate/as_printed.py"])
    strict = found.attention == "cattn_m"
    for config in (found, printed):
        assert (config.cf_intercept, config.cf_linear_intercept, config.cf_init) == ("one", True, "nanogpt")
        assert (config.cf_eval_clip, config.decay_ladders, config.dyadic) == (True, True, True)
        assert (config.cf_impl, config.cf_ladders, config.cf_depth) == ("continuant", 7, 7)
        assert config.cattn_strict or not strict
    assert found.cf_pole == "positive"
    assert (printed.cf_pole, printed.cf_eps) == ("clamp", 0.01)
    changed = {key for key, value in vars(found).items() if getattr(printed, key) != value}
    assert changed == {"cf_pole"} | ({"cattn_strict"} if not strict else set())
    head = (ROOT / name).read_text()
    assert "config/ablate/as_printed.py" in head
    assert "config/ablate/depth_with_w0.py" in head
    if "llama" in name:
        assert (found.weight_decay, found.dataset) == (0.1, "data/fineweb_edu/gpt2")
        assert "--weight_decay=0 is Adam" in head


@pytest.mark.parametrize("name", ["glu_ladders", "ladder_attention"])
def test_as_printed_on_another_model(name):
    config = resolve(TrainConfig, [f"config/ours/{name}.py", "config/ablate/as_printed.py"])
    assert (config.cf_pole, config.cf_init, config.cf_eval_clip) == ("clamp", "nanogpt", True)
    assert (config.cattn_strict, config.decay_ladders) == (True, True)


def test_counts_of_the_papers_models_beside_table_1():
    """Padded vocabulary, L = d = 7: without the intercepts, with those of the ladders, with a_0's."""
    counts = [
        sum(parameter_counts(model("config/cofrgenet_a.py", "--cattn_scores=collapsed", *keys)).values())
        for keys in (
            ["--cf_intercept=none", "--cf_linear_intercept=False"],
            ["--cf_linear_intercept=False"],
            [],
        )
    ]
    assert counts == [1_270_950_464, 1_270_952_816, 1_271_001_968]
    p, length, L, d = 1600, 1024, 7, 7
    bare = ["--cf_intercept=none", "--cf_linear_intercept=False"]

    def of(part, *files):
        return parameter_counts(model(*files, *bare))[part] // 48

    assert of("ffn", "config/cofrgenet_f.py") == L * p * (d + 1) + 2 * p * p
    assert (
        of("attention", "config/cofrgenet_a.py", "--cattn_scores=rank")
        == L * (p + length) + p * p + L * d * p
    )
    assert of("attention", "config/cofrgenet_a.py", "--cattn_scores=collapsed") == (
        L * (p + length) + p * p + length * p + L * (d - 1) * p
    )
    iclr = of("ffn", "config/cofrgenet_f.py", "config/ablate/iclr.py")
    assert iclr == 2 * L * p * (d + 1) + 2 * p * p + L * p
    cattn_u = of("attention", "config/cofrgenet_a.py", "config/ablate/cattn_u.py")
    assert cattn_u == length * (2 * d + length + 1) + 2 * length
    overlays = ("config/ablate/cattn_u.py", "config/ablate/depth_with_w0.py")
    assert of("attention", "config/cofrgenet_a.py", *overlays) == length * (2 * d + length + 1)


@pytest.mark.parametrize("name", [*PAPER, *COFRGENETS[:3]])
def test_the_papers_recipes_are_to_the_letter(name):
    config = resolve(TrainConfig, [name])
    shape = (config.n_layer, config.n_head, config.n_embd, config.block_size)
    assert shape == (48, 25, 1600, 1024)
    assert (config.learning_rate, config.min_lr, config.weight_decay) == (6e-4, 6e-5, 0.1)
    assert (config.max_iters, config.warmup_iters, config.dropout) == (600_000, 2000, 0.0)
    assert (config.beta1, config.beta2, config.grad_clip, config.lr_schedule) == (0.9, 0.95, 1.0, "cosine")
    assert config.batch_size * config.gradient_accumulation_steps * config.block_size == 491_520
    assert config.gradient_accumulation_steps % 16 == 0


def test_the_papers_saffu():
    config = resolve(TrainConfig, ["config/paper/saffu.py"])
    assert (config.saffu_radius, config.saffu_block, config.block_size) == (8, 128, 127)
    assert (config.saffu_block_width, config.saffu_radius_width) == (2**7, 2**5)
    assert (config.saffu_radius_mode, config.saffu_block_mode) == ("cat", "sum")
    assert (config.learning_rate, config.min_lr, config.warmup_iters) == (5e-6, 5e-6, 0)
    assert (config.saffu_tokens, config.saffu_tuning, config.saffu_train_embeddings) == (10**6, 10, False)
    counts = parameter_counts(model_config(config))
    trained = sum(counts.values()) - (config.vocab_size + 3) * (128 + 32)
    assert f"{trained:,} are trained" in (ROOT / "config/paper/saffu.py").read_text()


def test_the_papers_sparse_attention():
    config = resolve(TrainConfig, ["config/paper/sparse.py"])
    pattern = (config.bigbird_global, config.bigbird_window, config.bigbird_random, config.bigbird_block)
    assert (config.attention, pattern) == ("bigbird", (1, 3, 3, 64))


@pytest.mark.parametrize("name", ["config/llama_3b.py", *COFRGENETS[3:]])
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
    assert config.dyadic == ("cofrgenet" in name)


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


@pytest.mark.parametrize("name", REPORT)
def test_a_plan_of_the_reports_systems(name, capsys, monkeypatch):
    """Without the data, and without the hub."""
    from train import main

    def no_network(*arguments, **keys):
        raise AssertionError("a plan needs no network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.setattr("training.dry_run._memory", lambda *arguments: [])  # of other models, and slow
    monkeypatch.setattr("scaling.quick_times.of_token", lambda *arguments: None)
    main([name, "--dry_run=True"])
    said = capsys.readouterr().out
    (claimed,) = re.findall(r"expect: ([\d,]+) parameters", (ROOT / name).read_text()) or ["123,886,080"]
    assert f"parameters       {claimed} " in said
    assert "without effect" not in said


def test_the_reports_systems_are_to_the_letter():
    """Layers of both stacks, width, heads, feed-forward, vocabulary, pairs in a step, dropout."""
    configs = {Path(name).stem: resolve(TrainConfig, [name]) for name in REPORT if "gpt2" not in name}
    sizes = {
        "nb_nn": (6, 8, 512, 8, 2048, 50_000, 128, 0.1),
        "en_nb": (3, 3, 512, 8, 512, 65_536, 96, 0.1),
        "quixote_next": (3, 3, 512, 8, 512, 19_000, 64, 0.1),
        "kafka_next": (3, 3, 512, 8, 512, 7000, 64, 0.1),
        "bible_next": (3, 3, 448, 7, 448, 7000, 24, 0.1),
        "quixote_small": (0, 6, 384, 6, None, 15_000, 64 * 32, 0.2),
        "quixote_large": (0, 12, 768, 12, None, 15_000, 12 * 40, 0.0),
    }
    assert sizes.keys() == configs.keys()
    for name, c in configs.items():
        batch = c.batch_size * c.gradient_accumulation_steps
        shape = (
            c.encoder_layers,
            c.n_layer,
            c.n_embd,
            c.n_head,
            c.ffn_hidden,
            c.vocab_size,
            batch,
            c.dropout,
        )
        assert shape == sizes[name], name
        assert (
            (c.mlp_activation == "relu") == c.bias == (c.position == "sinusoidal") == bool(c.encoder_layers)
        )
        if c.encoder_layers:
            assert (c.learning_rate, c.min_lr, c.lr_schedule, c.warmup_iters) == (1e-4, 1e-4, "linear", 0)
            assert (c.beta1, c.beta2, c.weight_decay, c.grad_clip) == (0.9, 0.98, 0, 0)
            assert c.label_smoothing == 0
    small, large = configs["quixote_small"], configs["quixote_large"]
    for c, expected in (
        (small, (1e-3, 1e-4, 100, 5000, 0.99)),
        (large, (6e-4, 6e-5, 2000, 600_000, 0.95)),
    ):
        assert (c.learning_rate, c.min_lr, c.warmup_iters, c.max_iters, c.beta2) == expected
        assert (c.beta1, c.weight_decay, c.grad_clip, c.lr_schedule) == (0.9, 0.1, 1.0, "cosine")
