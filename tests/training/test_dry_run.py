"""--dry_run=True: true figures, nothing allocated, nothing written."""

import re
import resource
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from layers import FFN
from layers.protocol import ChannelMixer
from model import flops_per_token
from models.architecture import ModelConfig
from tests.corpus.test_mqar import LENGTH
from tests.corpus.test_mqar import prepared as mqar_rows
from train import main
from training import dry_run

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    monkeypatch.setattr("scaling.quick_times.of_token", lambda *arguments: None)


@pytest.fixture
def uncounted(monkeypatch):
    """Activations are not counted: 8 GiB, with checkpointing 2, and 1 if rounded weights are not kept."""

    def activations(config, batch_size, dtype, checkpointing, keep=True):
        return (8 - 6 * checkpointing - (not keep)) * GIB

    monkeypatch.setattr(dry_run, "activations", activations)


def test_the_plan_knows_the_optimizer(arguments, capsys, uncounted):
    said = []
    for optimizer in ("adamw", "muon"):
        main([*arguments, "--dry_run=True", f"--optimizer={optimizer}", "--n_embd=512", "--n_layer=8"])
        said.append(float(re.search(r"optimizer ([\d.]+)", capsys.readouterr().out)[1]))
    assert said[1] == pytest.approx(said[0] / 2, abs=0.01)


def test_epochs_of_prepared_data(arguments, run, capsys, uncounted):
    """Those that the run itself says."""
    main([*arguments, "--dry_run=True"])
    planned = re.search(r"tokens .* in 20 steps (\(.* epochs\))", capsys.readouterr().out)[1]
    run("a")
    assert planned in capsys.readouterr().out


def test_rows_are_as_long_as_they_are(arguments, capsys, tmp_path):
    """Rows of MQAR may be shorter than block_size."""
    rows = mqar_rows(tmp_path / "rows")
    keys = (f"--dataset={rows}", "--block_size=64", "--batch_size=2", "--gradient_accumulation_steps=2")
    main([*arguments, *keys, "--dry_run=True"])
    assert f"tokens           {4 * LENGTH:,} per step" in capsys.readouterr().out


class Constant(ChannelMixer):
    """Its constructor computes with a tensor, and a GPU alone runs its forward if `kernel`."""

    kernel = False

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.tensor(0.9).logit() * torch.ones(config.n_embd))

    def forward(self, x):
        if self.kernel:
            raise RuntimeError("0 active drivers")
        return self.scale * x

    @classmethod
    def flops_per_token(cls, config, context):
        return 0


def test_a_module_of_ones_own(arguments, capsys, monkeypatch):
    monkeypatch.setitem(FFN, "constant", Constant)
    main([*arguments, "--ffn=constant", "--dry_run=True"])
    assert "GiB on each GPU" in capsys.readouterr().out
    monkeypatch.setattr(Constant, "kernel", True)
    main([*arguments, "--ffn=constant", "--dry_run=True"])
    assert "memory           not counted" in capsys.readouterr().out.splitlines()[-1]


def test_a_large_model_is_counted_and_not_allocated(capsys, tmp_path):
    """Eight layers of GPT2-xl, dense, 8 A100: the whole sum by hand."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # the largest size so far is forgotten
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
    none, full = re.findall(r"weights ([\d.]+), gradients ([\d.]+), optimizer ([\d.]+),", said)
    for line, ranks in ((none, 1), (full, 8)):
        weights = 327_912_000 * 4 / GIB / ranks
        assert [float(size) for size in line] == pytest.approx([weights, weights, 2 * weights], abs=0.01)
    assert not (tmp_path / "out").exists()


def test_the_page_has_what_is_planned(capsys, tmp_path):
    """The row of GPT2-xl on 8 GPUs in docs/several_gpus.md."""
    main(["config/gpt2_xl.py", "--dry_run=True", "--dry_run_gpus=8", f"--out_dir={tmp_path / 'out'}"])
    none, full = re.findall(r"([\d.]+) GiB on each GPU with sharding", capsys.readouterr().out)
    page = (ROOT / "docs/several_gpus.md").read_text()
    assert re.search(rf"`config/gpt2_xl.py` \| {none} \| [\d.]+ \| {full} \|", page)


def test_memory_with_each_sharding_and_the_fewest_gpus(arguments, capsys, uncounted):
    keys = ["--dry_run=True", "--gradient_accumulation_steps=48", "--n_embd=4096", "--n_layer=20"]

    def plan(*more):
        main([*arguments, *keys, *more])
        said = capsys.readouterr().out
        line = r"([\d.]+) GiB on each GPU with sharding=(\w+)(?: \(chosen\))?: .*activations ([\d.]+)"
        return said, {way: (float(size), float(n)) for size, way, n in re.findall(line, said)}

    said, memory = plan("--dry_run_gpus=16")
    assert memory["full"] < memory["hybrid"] < memory["none"]
    assert [count for _, count in memory.values()] == [8, 8, 8]
    assert "groups of 8 GPUs; sharding_ranks" in said
    weights = 4 * int(re.search(r"parameters +([\d,]+)", said)[1].replace(",", ""))
    assert memory["none"][0] == pytest.approx(4 * weights / GIB + 8, abs=0.01)
    assert "H100 80 GB: sharding=none 1, full 1\n" in said
    assert "A100 40 GB: sharding=none does not fit, full 3\n" in said
    assert "A100 40 GB with activation_checkpointing: sharding=none does not fit, full 2\n" in said
    assert "numbers that divide gradient_accumulation_steps=48" in said

    memory = plan("--dry_run_gpus=8", "--activation_checkpointing=True")[1]
    assert {way: count for way, (_, count) in memory.items()} == {"none": 2, "full": 1}
    assert set(plan()[1]) == {"none"}
    said, memory = plan("--dry_run_gpus=12")
    assert set(memory) == {"none", "full"}
    assert "groups of 8 GPUs do not divide 12; sharding_ranks" in said
    memory = plan("--dry_run_gpus=12", "--sharding=hybrid", "--sharding_ranks=6")[1]
    assert set(memory) == {"none", "full", "hybrid"}


@pytest.mark.parametrize(
    ("keys", "chosen", "said"),
    [
        (["--sharding=full", "--dry_run_gpus=4"], ["full"], None),
        (["--sharding=none", "--dry_run_gpus=4"], ["none"], None),
        (
            ["--sharding=hybrid", "--dry_run_gpus=4"],
            ["hybrid"],
            "hybrid: one group of 4 GPUs, as with full;",
        ),
        (
            ["--sharding=hybrid", "--dry_run_gpus=16"],
            ["hybrid"],
            "hybrid: groups of 8 GPUs; sharding_ranks",
        ),
        (["--sharding=hybrid", "--dry_run_gpus=12"], [], "hybrid is not planned: groups of 8 GPUs"),
        (
            ["--sharding=full"],
            [],
            "full is not planned: one GPU",
        ),
        (
            ["--sharding=hybrid", "--sharding_ranks=2"],
            [],
            "hybrid is not planned: one GPU",
        ),
    ],
)
def test_the_chosen_sharding_is_marked_or_said_to_have_no_plan(
    arguments, capsys, uncounted, keys, chosen, said
):
    main([*arguments, "--dry_run=True", "--gradient_accumulation_steps=48", *keys])
    printed = capsys.readouterr().out
    assert re.findall(r"sharding=(\w+) \(chosen\): weights", printed) == chosen
    assert said is None or f"(sharding={said}" in printed


def test_torchrun_plans_once_and_for_its_ranks(arguments, capsys, uncounted, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    keys = [*arguments, "--dry_run=True", "--gradient_accumulation_steps=8", "--dtype=bfloat16"]
    monkeypatch.setenv("RANK", "1")
    main(keys)
    assert not capsys.readouterr().out
    monkeypatch.setenv("RANK", "0")
    main([*keys, "--sharding=hybrid"])
    said = capsys.readouterr().out
    assert " on 4 x H100 " in said
    assert "(sharding=hybrid: groups of 2 GPUs;" in said
    main([*keys, "--dry_run_gpus=8"])
    assert " on 8 x H100 " in capsys.readouterr().out


def test_what_fits_on_no_card_is_said(arguments, capsys, monkeypatch, uncounted):
    monkeypatch.setattr(dry_run, "CARDS", {"Abacus": 1.0})
    main([*arguments, "--dry_run=True"])
    assert (
        "fewest GPUs      Abacus: sharding=none does not fit, full does not fit" in capsys.readouterr().out
    )


def test_an_unknown_gpu_gives_no_hours(capsys, arguments, tmp_path):
    main([*arguments, "--dry_run=True", "--dry_run_gpu=Abacus", f"--out_dir={tmp_path / 'out'}"])
    said = capsys.readouterr().out
    assert "no peak FLOP rate in float32 for 'Abacus'" in said
    assert "vocabulary 257 (of " in said


def test_a_plan_refuses_the_groups_that_a_run_refuses(arguments, capsys):
    keys = ["--gradient_accumulation_steps=16", "--sharding=hybrid", "--sharding_ranks=5"]
    with pytest.raises(SystemExit):
        main([*arguments, "--dry_run=True", "--dry_run_gpus=16", *keys])
    said = capsys.readouterr().err
    assert "16 GPUs into groups of 5 (sharding_ranks)" in said
    assert "take --sharding_ranks=2 or 4 or 8 or 16" in said


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dry_run_mfu=1.5", "at most 1, not 1.5"),
        ("dry_run_mfu=0", "dry_run_mfu must be above 0"),
        ("dry_run_gpus=3", "dry_run_gpus=3 does not divide it: take 3"),
        ("dry_run_gpus=0", "dry_run_gpus must be at least 1"),
    ],
)
def test_unsound_plans_are_refused(arguments, capsys, key, message):
    with pytest.raises(SystemExit):
        main([*arguments, "--dry_run=True", f"--{key}"])
    assert message in capsys.readouterr().err
