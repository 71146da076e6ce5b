"""Sharded runs: losses of one process; resumed to the bit, and by other ranks; no rank holds the whole."""

import os
import re
import signal
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from model import GPT
from models.architecture import ModelConfig
from models.compilation import compile_parts
from tests.counting_compiler import Counter
from tests.training import forked_ranks
from tests.training.test_distributed import PLAIN, records
from tests.training.watched_train import play
from training import checkpoint, sharding
from training.config import TrainConfig

KEYS = {
    "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "cf_ladders": 3, "max_iters": 6,
    "warmup_iters": 1, "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1, "eval_interval": 4,
    "eval_tokens": 288, "checkpoint_interval": 100, "device": "cpu", "dtype": "float32", "compile": False,
}  # fmt: skip
FULL, STOP = "--sharding=full", {"stop": 3}
HYBRID = ["--sharding=hybrid", "--sharding_ranks=2"]
TUNED = ["--max_iters=3", "--ffn=mlp"]


def of(folder, dataset, runs):
    """runs: [(name, arguments, options)], as watched_train.py plays them."""
    keys = [*(f"--{key}={value}" for key, value in KEYS.items()), f"--dataset={dataset}", *PLAIN]
    return [{"arguments": [*keys, *a, f"--out_dir={folder / name}"], **o} for name, a, o in runs]


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    resume = "--resume=True"
    muon = ["--optimizer=muon", "--attention=cattn_relative,softmax"]  # and mixers by layer
    tuned = [*TUNED, f"--init_from={folder / 'one'}"]
    play(of(folder, dataset, [
        ("one", [], {}),
        ("muon_one", muon, {}),
        ("tuned_one", tuned, {}),
        ("one_to_four", [FULL], STOP),
    ]))  # fmt: skip
    part, group, whole = parts(checkpoint.load(checkpoint.find(folder / "one")), 2)
    two = of(folder, dataset, [
        ("two", [FULL], {}),
        ("muon_two", [FULL, *muon], {}),
        ("tuned_two", [FULL, *tuned], {}),
        ("halted", [FULL], STOP),
        ("poisoned", [FULL, "--max_iters=8"], {"poison": 6}),
        ("killed", [FULL, "--max_iters=8", "--checkpoint_interval=5"], {"die": 6, "answer_seconds": 2}),
    ])  # fmt: skip
    copies = [[str(folder / "halted"), str(folder / name)] for name in ("two_to_one", "full_to_none")]
    two_again = of(folder, dataset, [
        ("halted", [FULL, resume], {"count": [part + group, whole]}),
        ("full_to_none", ["--sharding=none", resume], {}),
    ])  # fmt: skip
    one = of(folder, dataset, [("two_to_one", [resume], {})])
    four = of(folder, dataset, [
        ("four", [FULL], STOP),
        ("hybrid", HYBRID, {}),
        ("one_to_four", [FULL, resume], {}),
    ])  # fmt: skip
    statuses, printed = forked_ranks.run([
        {"ranks": 2, "runs": two, "first": "check_all"},
        {"ranks": 2, "runs": two_again, "copies": copies},
        {"ranks": 1, "runs": one},
        {"ranks": 4, "runs": four},
    ], folder)  # fmt: skip
    assert statuses == [[1, -signal.SIGKILL], [0] * 2, [0], [0] * 4], printed
    return folder, printed


def log(runs, name):
    return records(runs[0] / name / "log.jsonl")


def saved(runs, name):
    return checkpoint.load(checkpoint.find(runs[0] / name))


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("two", "one"),
        ("four", "one"),
        ("hybrid", "one"),
        ("muon_two", "muon_one"),
        ("tuned_two", "tuned_one"),
    ],
)
def test_losses_are_those_of_one_process(runs, name, whole):
    """Also of evaluations, of which the last batch is smaller and has no partner on the other ranks.

    Those of four ranks up to step 3: those of one_to_four are compared from there on.
    """
    ours, theirs = log(runs, name), log(runs, whole)
    if name == "four":
        assert ours[-1]["step"] == 3
        theirs = theirs[: len(ours)]
    assert len(ours) == len(theirs) > 3
    compared = set()
    for a, b in zip(ours, theirs, strict=True):
        assert (a["step"], a["tokens"]) == (b["step"], b["tokens"])
        for key in {"loss", "grad_norm", "val_loss", "val_loss_unclipped"} & b.keys():
            assert a[key] == pytest.approx(b[key], rel=2e-5), (a["step"], key)
            compared.add(key)
        for layer, statistics in b.get("ladders", {}).items():
            known = {key: value for key, value in statistics.items() if value is not None}
            found = {key: a["ladders"][layer][key] for key in known}
            assert found == pytest.approx(known, rel=1e-2, abs=1e-3), (a["step"], layer)
    assert {"loss", "grad_norm", "val_loss"} <= compared
    assert ours[0]["val_loss"] == pytest.approx(theirs[0]["val_loss"], rel=1e-14)  # drawn to the bit


@pytest.mark.parametrize(("name", "whole"), [("two", "one"), ("hybrid", "one"), ("muon_two", "muon_one")])
def test_a_checkpoint_is_a_file_of_whole_tensors(runs, name, whole):
    """Depths that have slept to the end have no optimizer state in it."""
    ours, theirs = saved(runs, name), saved(runs, whole)
    assert ours["model"].keys() == theirs["model"].keys()
    assert ours["optimizer"]["state"].keys() == theirs["optimizer"]["state"].keys()
    for key, tensor in theirs["model"].items():
        assert type(ours["model"][key]) is torch.Tensor
        torch.testing.assert_close(ours["model"][key], tensor, rtol=1e-3, atol=2e-4)
    for number, state in theirs["optimizer"]["state"].items():
        shapes = {key: value.shape for key, value in state.items()}
        assert {key: value.shape for key, value in ours["optimizer"]["state"][number].items()} == shapes
    path = checkpoint.find(runs[0] / name)
    assert path.stat().st_size <= checkpoint.find(runs[0] / whole).stat().st_size + 2000


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(runs):
    def values(name):
        keys = ("step", "loss", "grad_norm", "val_loss", "val_loss_unclipped")
        return [[r.get(key) for key in keys] for r in log(runs, name)]

    assert values("halted") == values("two")
    ours, theirs = saved(runs, "halted"), saved(runs, "two")
    for key, tensor in theirs["model"].items():
        assert torch.equal(ours["model"][key], tensor), key


@pytest.mark.parametrize(
    ("name", "whole", "said"),
    [
        ("two_to_one", "two", {"ranks": "ranks were 2, now 1"}),
        ("one_to_four", "one", {"ranks": "ranks were 1, now 4"}),
        ("full_to_none", "two", {"sharding": "sharding was 'full', now 'none'"}),
    ],
)
def test_other_ranks_and_another_sharding_go_on(runs, name, whole, said):
    lines = log(runs, name)
    (change,) = [line["resumed"] for line in lines if "resumed" in line]
    assert change.keys() == said.keys()
    assert all(change[key].startswith(text) for key, text in said.items())
    losses, expected = (
        [r["loss"] for r in one if "loss" in r] for one in (lines, log(runs, whole))
    )  # fmt: skip
    assert losses == pytest.approx(expected, rel=1e-6)


def parts(content, ranks):
    """(bytes of a rank's part of weights, moments and buffers; bytes of the largest group of weights)"""
    model, states = content["model"], content["optimizer"]["state"]
    buffers = {key for key in model if ".z_m" in key}
    spread = [tensor for key, tensor in model.items() if key not in buffers]
    spread += [tensor for state in states.values() for key, tensor in state.items() if key != "step"]
    part = sum(4 * -(-len(tensor) // ranks) * tensor.shape[1:].numel() for tensor in spread)
    part += sum(model[key].nbytes for key in buffers) + 4 * len(states)
    groups = defaultdict(int)
    for key, tensor in model.items():
        groups[key.split(".")[1] if key.startswith("blocks.") else "root"] += tensor.nbytes
    return part, max(groups.values()), sum(tensor.nbytes for tensor in spread)


def test_no_rank_holds_the_whole_while_it_loads_or_saves(runs):
    part, group, whole = parts(saved(runs, "halted"), 2)
    assert part + group < 0.8 * whole
    for rank in (0, 1):
        held = [r for r in records(runs[0] / f"halted.rank{rank}.jsonl") if r["at"] == "saving"]
        assert part / 2 < held[0]["loading"] <= part + group
        # rank 0 collects the file in the machine's memory, which on a CPU is the device's too
        assert part < held[-1]["saving"] <= part + group + (whole if rank == 0 else 0)


def test_not_finite_on_one_rank_is_told_of_that_rank(runs):
    message = re.search(r"train.py: loss nan and .*? at step 6.*?Try a lower", runs[1], re.DOTALL).group()
    assert "rank 1, samples 50 to 51: loss nan, first not finite in the output of blocks.0.ffn" in message
    assert "rank 0" not in message


def test_a_killed_rank_is_named(runs):
    said = r"did not arrive at step 6 \(.*\); rank 1 is dead or hanging \(process \d+ on \S+\)"
    assert len(re.findall(said, runs[1])) == 1, runs[1]
    assert "goes on from step_00000005.pt" in runs[1]


def test_every_model_of_the_registries(runs):
    """Drawn to the bit, in parts, and trained as the whole model is."""
    assert "all models" in runs[1].splitlines()


@pytest.fixture
def alone():
    """A mesh of one rank: everything is gathered and dropped, from one to one."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("backend", ["counter", "aot_eager"])
def test_one_graph_for_all_sharded_blocks(alone, checkpointing, backend):
    """Compiled blocks gather and drop their weights around one compiled function.

    aot_eager divides the forward from the backward pass, as inductor does.
    """
    torch._dynamo.reset()
    config = ModelConfig(vocab_size=60, n_layer=4, n_head=2, n_embd=32, block_size=12, position="expe")
    config.expe_learned, config.ffn, config.cf_eval_clip = "standard", "cffn_gated", True
    tokens, models = torch.randint(0, 60, (2, 12)), []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = GPT(config).init_weights()
        models.append(sharding.shard(model, alone) if sharded else model)
    plain, model = models
    model.activation_checkpointing = checkpointing
    counter = Counter()
    compile_parts(model, counter if backend == "counter" else backend)
    for _ in range(2):
        loss = model(tokens, tokens)
        assert all(sharding.in_parts(parameter) for parameter in model.blocks.parameters())
        loss.backward()
    if backend == "counter":
        assert counter.graphs == 3  # embedding, block, head
    expected = plain(tokens, tokens)
    (2 * expected).backward()
    torch.testing.assert_close(loss, expected)
    for (name, parameter), whole in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.full_tensor(), whole.grad, msg=name)


def test_a_parameter_without_a_dimension_is_refused(build):
    model = build()
    model.blocks[1].ffn.scale = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"blocks\.1\.ffn\.scale has no dimension"):
        sharding.shard(model, None)


@pytest.mark.parametrize(
    ("ranks", "on_machine", "keys", "said"),
    [
        (2, 2, {"sharding": "full", "dtype": "float16"}, "sharding=full does not work with dtype=float16"),
        (4, 4, {"sharding": "hybrid", "sharding_ranks": 1}, "sharding_ranks must be at least 2, not 1"),
        (4, 4, {"sharding": "hybrid", "sharding_ranks": 3}, "groups of 3 (sharding_ranks)"),
        (4, 1, {"sharding": "hybrid"}, "groups of 1 (LOCAL_WORLD_SIZE)"),
        (6, 4, {"sharding": "hybrid"}, "take --sharding_ranks=2 or 3 or 6"),
        (4, 2, {"sharding": "hybrid"}, None),
        (4, 4, {"sharding": "hybrid", "sharding_ranks": 2}, None),
        (1, 1, {"sharding": "hybrid", "sharding_ranks": 2}, None),
        (4, 4, {"sharding": "full", "dtype": "bfloat16"}, None),
    ],
)
def test_mistakes_in_the_keys(monkeypatch, ranks, on_machine, keys, said):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(on_machine))
    wrong = sharding.mistakes(TrainConfig(**keys))
    assert [said in one for one in wrong] == [True] * (said is not None)


def test_neighbours_share_a_model(monkeypatch):
    """Ranks of one machine have neighbouring numbers, and gather weights in each micro-batch."""
    monkeypatch.setattr(sharding.dist, "new_subgroups_by_enumeration", lambda ranks, timeout: (ranks, None))
    made = {}
    monkeypatch.setattr(
        DeviceMesh, "from_group", lambda groups, *_, **keys: made.update(groups=groups, **keys)
    )
    ranks = SimpleNamespace(world=4, limit=None)
    sharding.mesh(TrainConfig(sharding="hybrid", sharding_ranks=2), ranks, torch.device("cpu"))
    assert made["mesh_dim_names"] == ("groups", "ranks")
    assert made["groups"] == [[[0, 2], [1, 3]], [[0, 1], [2, 3]]]


def test_one_rank_holds_everything_and_says_so(run, capsys):
    assert "WORLD_SIZE" not in os.environ
    run("alone", "--sharding=full", "--max_iters=2")
    assert "sharding=full, but there is one rank" in capsys.readouterr().out
