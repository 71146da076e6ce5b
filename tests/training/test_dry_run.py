"""--dry_run=True: true figures, nothing allocated, nothing written."""

import re
import resource

import pytest

from architecture import ModelConfig
from model import flops_per_token
from train import main


def test_the_plan_knows_the_optimizer(arguments, capsys, tmp_path):
    said = []
    for optimizer in ("adamw", "muon"):
        main([*arguments, "--dry_run=True", f"--optimizer={optimizer}", "--n_embd=512", "--n_layer=8"])
        said.append(float(re.search(r"optimizer ([\d.]+)", capsys.readouterr().out)[1]))
    assert said[1] == pytest.approx(said[0] / 2, abs=0.01)


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
