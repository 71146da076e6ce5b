"""Sharded checkpoints on two ranks, and kills within a save, in processes forked from this one.

    python tests/training/sharded_ranks.py FOLDER DATASET

Prints {scenario: "" or what went wrong} as JSON. Each scenario is a function of a folder; a cold start of
PyTorch for each process would take longer than all of them.
"""

import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from host.disk import lacks_space

import pytest
import torch
import torch._dynamo  # which the first optimizer of each child would import
from torch import nn
from torch.distributed.fsdp import fully_shard

import train as train_script
from tests.training.held_bytes import HeldBytes
from training import checkpoint, pretrained, sharded_checkpoint
from training.distributed import LostRankError, OtherRankError, Ranks
from training.log import Log
from training.optimizer import Optimizer
from training.sharded_checkpoint import Saver, read_state

NO_LIMIT = 2**62  # of bytes: gloo holds none of them here
FACTS = {
    **{"config": {}, "tokenizer": {}, "data": {}, "best_val_loss": 1.0, "seconds": 0.0, "tracker_id": None},
    **{"scaler": {}, "samples": 8, "tokens": 64, "ranks": 1, "records": 0, "commit": "abc"},
}


def built(sharded: bool):
    """(model, optimizer); rows that no number of ranks divides, and fewer rows than ranks."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))
    if sharded:
        for layer in model[::2]:
            fully_shard(layer)
        fully_shard(model)
    groups = [{"params": list(model.parameters()), "weight_decay": 0.1, "depth": 0}]
    return model, Optimizer(groups, 0.05, (0.9, 0.95))


def train(model, optimizer, steps: int):
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(6, 5)).square().mean().backward()
        model[2].bias.grad = None  # as a sleeping depth, which has no state
        optimizer.step()
        optimizer.zero_grad()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def state(model, optimizer) -> dict[str, torch.Tensor]:
    found = {name: whole(parameter) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for slot, tensor in optimizer.state.get(parameter, {}).items():
            found[f"{name} {slot}"] = whole(tensor)
    return found


def expect_equal(found: dict, expected: dict):
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    assert not [name for name in expected if not torch.equal(found[name], expected[name])]


def save(saver, step, model, optimizer, best=True):
    saver.save({**FACTS, "step": step}, model, optimizer, best)


def load(folder, sharded: bool):
    """The newest checkpoint; a rank holds its part and, of one tensor at a time, a whole one."""
    model, optimizer = built(sharded)
    path = checkpoint.numbered(folder)[-1]
    content = checkpoint.load(path)
    with HeldBytes(NO_LIMIT) as counted:
        read_state(path, content, model, optimizer)
    assert counted.peak <= held(model, optimizer) + 4 * 7 * 5, (counted.peak, held(model, optimizer))
    return model, optimizer


def held(model, optimizer) -> int:
    """Bytes of this rank's weights and optimizer state."""
    tensors = [*model.parameters(), *(t for slots in optimizer.state.values() for t in slots.values())]
    parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(part.untyped_storage().nbytes() for part in parts)


def forked(folder, ranks: int, work, joined: bool = True) -> list[int]:
    """Run work(ranks) in that many processes -> how each of them ended. Not joined: work() meets itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
            names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in names.items()}
            try:
                if not joined:
                    work()
                    os._exit(0)
                with Ranks().joined(torch.device("cpu"), 60) as group:
                    group.answer_seconds = 3
                    work(group)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def expect_success(folder, ranks, work):
    found = forked(folder, ranks, work)
    assert found == [0] * ranks, found


def two_ranks_and_one(folder):
    """2 ranks -> 2, 1, sharded or not; written while the weights change; 1 -> 2."""

    def write(ranks):
        model, optimizer = built(sharded=True)
        train(model, optimizer, 3)
        expected = state(model, optimizer)
        assert len(expected) == 6 + 5 * 3
        saver = Saver(folder, ranks, keep=2)
        own = held(model, optimizer)
        assert own < 0.7 * sum(tensor.nbytes for tensor in expected.values())
        with HeldBytes(NO_LIMIT) as counted:
            save(saver, 3, model, optimizer)
        assert own < counted.peak <= 2 * own + 100, (own, counted.peak)  # numbers of the mesh
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(7.0)
                for tensor in optimizer.state.get(parameter, {}).values():
                    tensor.fill_(7.0)
        saver.finish()
        assert sorted(os.listdir(folder)) == ["best_00000003", "step_00000003"]
        again = load(folder, sharded=True)
        expect_equal(state(*again), expected)
        train(*again, 2)
        after = state(*again)
        if ranks.first:
            torch.save((expected, after), folder / "expected.pt")

    def read(ranks):
        expected, after = torch.load(folder / "expected.pt")
        path = checkpoint.numbered(folder)[-1]
        assert len(list(path.glob("*.distcp"))) == 2
        weights = pretrained.weights_of_run(path, checkpoint.load(path))
        expect_equal(weights, {name: tensor for name, tensor in expected.items() if " " not in name})
        model, optimizer = load(folder, sharded=False)
        expect_equal(state(model, optimizer), expected)
        train(model, optimizer, 2)
        for name, tensor in state(model, optimizer).items():
            torch.testing.assert_close(tensor, after[name], rtol=0, atol=1e-6)
        saver = Saver(folder, ranks, keep=2)
        save(saver, 5, model, optimizer)
        saver.finish()
        torch.save(state(model, optimizer), folder / "expected.pt")

    def read_again(ranks):
        expect_equal(state(*load(folder, sharded=True)), torch.load(folder / "expected.pt"))

    for ranks, work in ((2, write), (1, read), (2, read_again)):
        expect_success(folder, ranks, work)


def runs(folder):
    """train.py with sharded weights, from the middle on: to the bit by two ranks, up to rounding by one."""
    keys = {
        "dataset": sys.argv[2], "n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "cf_ladders": 3,
        "max_iters": 8, "warmup_iters": 1, "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1,
        "eval_interval": 4, "eval_tokens": 160, "checkpoint_interval": 4, "device": "cpu", "compile": False,
        "dtype": "float32", "batch_size": 2, "gradient_accumulation_steps": 2, "attention": "cattn_m",
        "ffn": "cffn_added", "dyadic": True, "optimizer": "muon", "cf_eval_clip": True,
    }  # fmt: skip
    keys |= {"sharding": "full", "checkpoint_format": "sharded"}
    start = [f"--{key}={value}" for key, value in keys.items()]

    def trained(ranks, name, *arguments) -> list[dict]:
        def work():
            train_script.main([*arguments, f"--out_dir={folder / name}"])

        found = forked(folder, ranks, work, joined=False)
        assert found == [0] * ranks, found
        lines = [json.loads(line) for line in (folder / name / "log.jsonl").read_text().splitlines()]
        return [(r["step"], r.get("loss", r.get("val_loss"))) for r in lines if "resumed" not in r]

    def to_the_middle(name, format):
        shutil.copytree(folder / format, folder / name)
        for path in checkpoint.saved(folder / name):
            if checkpoint.load(path)["step"] > 4:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert checkpoint.step_of(checkpoint.find(folder / name)) == 4

    expected = trained(2, "sharded", *start)
    assert trained(2, "whole", *start, "--checkpoint_format=whole") == expected
    for name, ranks, format, change in (
        ("to two", 2, "sharded", ()),
        ("to whole", 2, "sharded", ("--checkpoint_format=whole",)),
        ("from whole", 2, "whole", ("--checkpoint_format=sharded",)),
        ("to one", 1, "sharded", ("--sharding=none",)),
    ):
        to_the_middle(name, format)
        found = trained(ranks, name, "--resume=True", *change)
        tolerance = 0.0 if change != ("--sharding=none",) else 1e-6
        for (step, loss), (other, value) in zip(found, expected, strict=True):
            assert step == other
            assert abs(loss - value) <= tolerance * value, (name, step, loss, value)


def replicated(folder):
    """Without sharding, each rank writes a part of the model."""

    def work(ranks):
        model, optimizer = built(sharded=False)
        train(model, optimizer, 2)
        saver = Saver(folder, ranks, keep=2)
        save(saver, 2, model, optimizer)
        saver.finish()
        path = checkpoint.numbered(folder)[-1]
        sizes = [file.stat().st_size for file in path.glob("*.distcp")]
        assert len(sizes) == 2
        assert min(sizes) > 0.3 * sum(sizes)
        expect_equal(state(*load(folder, sharded=False)), state(model, optimizer))

    expect_success(folder, 2, work)


def full_disk_of_one_rank(folder):
    """Both ranks end with the reason; the checkpoint before stays, and nothing else."""

    def work(ranks):
        model, optimizer = built(sharded=True)
        train(model, optimizer, 1)
        saver = Saver(folder, ranks, keep=1)
        save(saver, 1, model, optimizer)
        saver.finish()
        real = sharded_checkpoint.dcp.FileSystemWriter.write_data

        def write_data(self, plan, planner):
            found = real(self, plan, planner)
            if ranks.rank == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return found

        sharded_checkpoint.dcp.FileSystemWriter.write_data = write_data
        save(saver, 2, model, optimizer)
        while not saver.failed():
            time.sleep(0.001)
        message = r"step_00000002 .*\(rank 1: the disk is full"
        expected = (OSError, message) if ranks.first else (OtherRankError, "rank 0 cannot go on")
        with pytest.raises(expected[0], match=expected[1]) as caught:
            save(saver, 3, model, optimizer)
        assert lacks_space(caught.value) == ranks.first
        ranks.gather("both are here")
        assert sorted(os.listdir(folder)) == ["best_00000001", "step_00000001"]

    expect_success(folder, 2, work)


def killed_rank(folder):
    """A rank dies while it writes: the other one names it, and the checkpoint before is whole."""

    def work(ranks):
        model, optimizer = built(sharded=True)
        train(model, optimizer, 1)
        saver = Saver(folder, ranks, keep=1)
        save(saver, 1, model, optimizer)
        saver.finish()
        real = sharded_checkpoint._Writer.write_data

        def write_data(self, plan, planner):
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, plan, planner)

        sharded_checkpoint._Writer.write_data = write_data
        save(saver, 2, model, optimizer)
        message = "checkpoint of the other ranks .*rank 1 is dead"
        with pytest.raises(LostRankError, match=message):
            saver.finish()
        os._exit(0)  # without the shutdown of a group in which one is missing

    assert forked(folder, 2, work) == [0, -signal.SIGKILL]
    assert sorted(os.listdir(folder)) == ["best_00000001", "step_00000001", "step_00000002.tmp"]
    expect_success(folder, 1, lambda ranks: load(folder, sharded=False))


PLACES = {
    "in the pieces": lambda die: setattr(sharded_checkpoint.archive, "identity", die),
    "before the rest": lambda die: setattr(checkpoint, "write_archive", die),
    "before the best one": lambda die: setattr(checkpoint, "link", die),
    "before its name": lambda die: setattr(Path, "rename", at("step_00000002.tmp", Path.rename, die)),
    "before pruning": lambda die: setattr(checkpoint, "prune", die),
    "in pruning": lambda die: setattr(checkpoint.shutil, "rmtree", half(checkpoint.shutil.rmtree, die)),
}


def at(name, real, die):
    def rename(path, target):
        return die() if path.name == name else real(path, target)

    return rename


def half(real, die):
    def rmtree(path, **keys):
        (Path(path) / ".metadata").unlink()
        die()

    return rmtree


def killed(folder):
    """At every place of a save: one whole checkpoint is there, and the next save sweeps up."""
    for place, patch in PLACES.items():
        own = folder / place.replace(" ", "_")

        def write(ranks, own=own, patch=patch):
            model, optimizer = built(sharded=False)
            train(model, optimizer, 1)
            saver = Saver(own, ranks, keep=1)
            save(saver, 1, model, optimizer)
            saver.finish()
            patch(lambda *arguments, **keys: os.kill(os.getpid(), signal.SIGKILL))
            save(saver, 2, model, optimizer)
            saver.finish()

        def go_on(ranks, own=own, place=place):
            newest = checkpoint.numbered(own)[-1]
            assert checkpoint.step_of(newest) == (2 if "prun" in place else 1), (place, newest)
            for path in (newest, checkpoint.bests(own)[-1]):
                pretrained.weights_of_run(path, checkpoint.load(path))
            model, optimizer = load(own, sharded=False)
            assert list(own.glob("*.tmp")) or place == "before pruning"
            saver = Saver(own, ranks, keep=1)
            save(saver, 3, model, optimizer)
            saver.finish()
            assert sorted(os.listdir(own)) == ["best_00000003", "step_00000003"], os.listdir(own)

        assert forked(own, 1, write) == [-signal.SIGKILL], place
        expect_success(own, 1, go_on)


SCENARIOS = [two_ranks_and_one, runs, replicated, full_disk_of_one_rank, killed_rank, killed]

if __name__ == "__main__":
    torch.set_num_threads(1)
    Log.draw = lambda self, interval=0.0: None  # as in tests/conftest.py
    results = {}
    for scenario in SCENARIOS:
        folder = Path(sys.argv[1]) / scenario.__name__
        folder.mkdir()
        try:
            scenario(folder)
            results[scenario.__name__] = ""
        except AssertionError:
            results[scenario.__name__] = traceback.format_exc()
    print(json.dumps(results))
