"""--dry_run=True: true figures, nothing allocated, nothing written."""

import dataclasses
import re
import resource

import pytest
import torch

from architecture import ModelConfig
from layers import FFN
from model import GPT, flops_per_token
from train import main
from training import dry_run
from training.dry_run import memory_estimate
from training.optimizer import muon

VARIANTS = [
    {"attention": "softmax", "ffn": "mlp"},
    {"attention": "cattn_m", "ffn": "cffn_added"},
    {"attention": "cattn_u", "ffn": "cffn_product", "cf_init": "nanogpt"},
]


@pytest.mark.parametrize("keys", VARIANTS)
def test_activations_cover_what_autograd_keeps(tiny, keys):
    """Against the tensors that the graph of a real forward pass holds, the model's own left out."""
    config = tiny(n_layer=2, n_embd=48, block_size=64, **keys)
    torch.manual_seed(0)
    model = GPT(config).init_weights()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(100, (4, 64))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(tokens, tokens)
    estimate = memory_estimate(config, 4, "float32", False)
    weights = 4 * model.parameter_count()
    assert [estimate.pop(kind) for kind in ("weights", "gradients")] == [weights, weights]
    assert estimate.pop("optimizer") == 2 * weights
    (estimate,) = estimate.values()
    assert sum(kept.values()) < estimate < 2.5 * sum(kept.values())
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("keys", "batch_size", "dtype", "checkpointing"),
    [
        ({}, 2, "float32", False),
        (
            {"position": "expe", "vocab_size": 5000},
            1,
            "float32",
            True,
        ),  # the embedding's gradient is fullest
        ({"bias": True, "position": "rope"}, 6, "bfloat16", True),
        ({"attention": "cattn_m", "ffn": "cffn_added"}, 2, "bfloat16", False),
        ({"attention": "cattn_relative", "ffn": "cffn_gated"}, 6, "bfloat16", True),
        ({"attention": "bigbird", "vocab_size": 5000, "block_size": 16}, 1, "float32", True),  # buffers
    ],
)
def test_a_few_blocks_tell_the_memory_of_many(tiny, keys, batch_size, dtype, checkpointing):
    """The same number as that of a pass through all blocks, to the byte."""
    config = tiny(n_layer=6, n_embd=48, **keys)
    whole = dry_run._peaks(config, batch_size, dtype, checkpointing)[-1]
    whole += sum(buffer.nbytes for buffer in GPT(config).buffers())
    optimizer = "adamw" if checkpointing else "muon"
    estimate = memory_estimate(config, batch_size, dtype, checkpointing, optimizer)
    assert estimate["activations"] == whole


def test_blocks_that_are_not_equal_are_all_counted(tiny, monkeypatch):
    """A feed-forward layer that is wider in every fourth block."""

    class Wider(FFN["mlp"]):
        blocks = 0

        def __init__(self, config):
            Wider.blocks += 1
            width = 200 if Wider.blocks % 4 == 0 else 50
            super().__init__(dataclasses.replace(config, ffn_hidden=width))

    monkeypatch.setitem(FFN, "mlp", Wider)
    counted = []
    real = dry_run._peaks
    monkeypatch.setattr(
        dry_run, "_peaks", lambda config, *rest: counted.append(config) or real(config, *rest)
    )
    assert dry_run._activations(tiny(n_layer=8), 2, "float32", False) > 0
    assert [config.n_layer for config in counted] == [8]


def test_muon_holds_one_moment_of_its_matrices(tiny):
    config = tiny(attention="cattn_m", ffn="cffn_added", cf_eval_clip=True)
    model = GPT(config).init_weights()
    optimizer = muon(model, 1e-3, 0.1, (0.9, 0.95))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = (tensor for state in optimizer.state.values() for tensor in state.values() if tensor.dim())
    estimate = memory_estimate(config, 1, "float32", False, "muon")
    assert estimate["optimizer"] == 4 * sum(tensor.numel() for tensor in moments)
    plain = memory_estimate(config, 1, "float32", False)
    assert estimate["optimizer"] < plain.pop("optimizer")
    assert plain.items() <= estimate.items()


def test_the_plan_knows_the_optimizer(arguments, capsys, tmp_path):
    said = []
    for optimizer in ("adamw", "muon"):
        main([*arguments, "--dry_run=True", f"--optimizer={optimizer}", "--n_embd=512", "--n_layer=8"])
        said.append(float(re.search(r"optimizer ([\d.]+)", capsys.readouterr().out)[1]))
    assert said[1] == pytest.approx(said[0] / 2, abs=0.01)


def test_recomputing_blocks_takes_less_and_longer_batches_more(tiny):
    config = tiny(n_layer=6)
    plain, recomputed = (memory_estimate(config, 4, "bfloat16", c)["activations"] for c in (False, True))
    assert recomputed < 0.7 * plain
    assert memory_estimate(config, 8, "bfloat16", False)["activations"] > 1.8 * plain


def test_a_large_model_is_counted_and_not_allocated(capsys, tmp_path):
    """Eight layers of GPT2-xl, dense, 8 A100: the whole sum by hand."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    main([
        "config/gpt2.py", "config/size/xl.py", "--n_layer=8", "--dry_run=True", "--dry_run_gpus=8",
        "--dry_run_mfu=0.5", "--dry_run_gpu=A100",
        f"--out_dir={tmp_path / 'out'}", f"--dataset={tmp_path / 'none'}",
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000
    )  # KiB; the weights alone: 1.3 GB
    assert "parameters       327,912,000 (245,787,200 without embeddings), vocabulary 50,257" in said
    config = ModelConfig(n_layer=8, n_head=25, n_embd=1600, block_size=1024, vocab_size=50257)
    assert f"{flops_per_token(config) / 1e6:,.1f} M forward" in said
    assert "491,520 per step, 294,912,000,000 in 600,000 steps" in said
    hours = 3 * flops_per_token(config) * 294_912_000_000 / (8 * 0.5 * 312e12) / 3600
    assert f"{hours:,.1f} h on 8 x A100 at 50 % MFU of 312 TFLOP/s each" in said
    kinds = dict(re.findall(r"(weights|gradients|optimizer|activations) ([\d.]+)", said))
    assert float(kinds["weights"]) == pytest.approx(327_912_000 * 4 / 2**30, abs=0.01)
    assert not (tmp_path / "out").exists()


def test_an_unknown_gpu_gives_no_hours(capsys, arguments, tmp_path):
    main([*arguments, "--dry_run=True", "--dry_run_gpu=Abacus", f"--out_dir={tmp_path / 'out'}"])
    said = capsys.readouterr().out
    assert "time             unknown: no peak FLOP rate in float32 for 'Abacus'; known: " in said
    assert "vocabulary 257 (of " in said


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dry_run_mfu=1.5", "dry_run_mfu is a share, at most 1, not 1.5"),
        ("dry_run_mfu=0", "dry_run_mfu must be above 0"),
        ("dry_run_gpus=3", "dry_run_gpus=3 does not divide it: take 3"),
        ("dry_run_gpus=0", "dry_run_gpus must be above 0"),
    ],
)
def test_unsound_plans_are_refused(arguments, capsys, key, message):
    with pytest.raises(SystemExit):
        main([*arguments, "--dry_run=True", f"--{key}"])
    assert message in capsys.readouterr().err
