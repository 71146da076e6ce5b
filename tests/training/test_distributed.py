"""Several ranks: the same run as one, to rounding; the same weights on all; a clear end for all."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from corpus.loader import Dataset, Loader
from tests.training import forked_ranks
from training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
LADDERS = ["--attention=cattn_m", "--ffn=cffn_product", "--dyadic=True", "--cf_eval_clip=True"]
PLAIN = [*LADDERS, "--gradient_accumulation_steps=4", "--batch_size=2", "--grad_clip=0.5"]


def command(ranks, *program):
    """torchrun with a port of its own choosing, or a plain process."""
    if ranks == 1:
        return [sys.executable, *map(str, program)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, *map(str, program)]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def train_watched(folder, groups):
    """groups: {ranks: {name: (arguments, options)}} -> what all of them said."""

    def runs(named):
        return [{"arguments": [*a, f"--out_dir={folder / name}"], **o} for name, (a, o) in named.items()]

    groups = [{"ranks": ranks, "runs": runs(named)} for ranks, named in groups.items()]
    statuses, printed = forked_ranks.run(groups, folder)
    assert not any(itertools.chain(*statuses)), printed
    return printed


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def held(folder, name, ranks):
    """What the ranks wrote down, one list each."""
    return [records(folder / f"{name}.rank{rank}.jsonl") for rank in range(ranks)]


@pytest.fixture(scope="module")
def runs(dataset, tmp_path_factory):
    """A short run on 1, 2 and 4 ranks, with Muon on 1 and 2; on 2 also everything at once, and some that
    fail.
    """
    folder = tmp_path_factory.mktemp("runs")
    keys = {
        "dataset": dataset, "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "cf_ladders": 3,
        "max_iters": 12, "warmup_iters": 1, "learning_rate": 3e-3, "min_lr": 3e-4, "log_interval": 1,
        "eval_interval": 5, "eval_tokens": 320, "checkpoint_interval": 4, "device": "cpu",
        "dtype": "float32", "compile": False,
    }  # fmt: skip
    arguments = [*(f"--{key}={value}" for key, value in keys.items()), *PLAIN]
    # one layer, as it is compiled on each rank
    everything = ["--n_layer=1", "--cf_depth=2", "--compile=True", "--dropout=0.1"]
    everything += ["--activation_checkpointing=True"]
    muon = [*arguments, "--optimizer=muon"]
    seldom = [*arguments, "--log_interval=100", "--eval_interval=100"]
    of_two = {
        "two": (arguments, {}),
        "muon_two": (muon, {}),
        "everything": ([*arguments, *everything], {}),
        "poisoned": (arguments, {"poison": 6}),
        "poisoned_unseen": ([*seldom, "--checkpoint_interval=5"], {"poison": 6}),
        "unreadable": (arguments, {"unreadable": 6}),
        "undivided": ([*arguments, "--gradient_accumulation_steps=3"], {}),
        "in_use": (arguments, {}),
        "slow": ([*arguments, "--distributed_timeout=10", "--max_iters=4"], {"slow": 13}),
        "full": (arguments, {"file_limit": 50_000}),  # the last one: the limit stays
    }
    (folder / "in_use").mkdir()
    (folder / "in_use" / "precious").write_text("")
    of_one = {"one": (arguments, {}), "muon_one": (muon, {})}
    printed = train_watched(folder, {1: of_one, 2: of_two, 4: {"four": (arguments, {})}})
    return folder, printed


def test_losses_do_not_depend_on_the_number_of_ranks(runs):
    folder, _ = runs
    one, two, four = (records(folder / name / "log.jsonl") for name in ("one", "two", "four"))
    assert len(one) == len(two) == len(four) == 12 + 4
    for other in (two, four):
        for a, b in zip(one, other, strict=True):
            assert (a["step"], a["tokens"]) == (b["step"], b["tokens"])
            for key in {"loss", "grad_norm", "val_loss", "val_loss_unclipped"} & a.keys():
                assert b[key] == pytest.approx(a[key], rel=2e-5), (a["step"], key)
    # the same weights, the same batches: nothing but the order of a sum in float64
    assert two[0]["val_loss"] == pytest.approx(one[0]["val_loss"], rel=1e-14)
    assert four[0]["val_loss"] == pytest.approx(one[0]["val_loss"], rel=1e-14)


def test_the_same_batches_on_any_number_of_ranks(runs):
    folder, _ = runs
    steps = {}
    for name, ranks in (("one", 1), ("two", 2), ("four", 4)):
        for found in held(folder, name, ranks):
            for record in found:
                if record["at"] == "batches":
                    steps.setdefault((name, record["step"]), []).extend(record["digests"])
    for step in range(12):
        batches = steps["one", step]
        assert len(set(batches)) == 4
        assert set(steps["two", step]) == set(steps["four", step]) == set(batches)
        assert len(steps["two", step]) == len(steps["four", step]) == 4


def test_gradients_travel_once_a_step_and_dropout_differs(runs):
    folder, _ = runs
    for name, ranks, local in (("one", 1, 0), ("two", 2, 1), ("four", 4, 0)):
        found = [[r for r in one if r["at"] == "batches"] for one in held(folder, name, ranks)]
        assert {r["local"] for one in found for r in one} == {local}
        seeds = {r["seed"] for one in found for r in one}
        assert len(seeds) == 12 * ranks


def test_muon_does_not_depend_on_the_number_of_ranks(runs):
    folder, _ = runs
    one, two = (records(folder / name / "log.jsonl") for name in ("muon_one", "muon_two"))
    assert len(one) == len(two) == 12 + 4
    for a, b in zip(one, two, strict=True):
        for key in {"loss", "grad_norm", "val_loss"} & a.keys():
            assert b[key] == pytest.approx(a[key], rel=2e-5), (a["step"], key)
    assert one != records(folder / "one" / "log.jsonl")


@pytest.mark.parametrize(("name", "ranks"), [("two", 2), ("muon_two", 2), ("everything", 2), ("four", 4)])
def test_weights_and_ranges_are_the_same_on_all_ranks(runs, name, ranks):
    """At each evaluation and checkpoint, the last one after all steps; the ranks read different batches."""
    folder, _ = runs
    first, *others = held(folder, name, ranks)
    places = [(r["step"], r["at"]) for r in first if r["at"] != "batches"]
    assert {(0, "evaluation"), (12, "evaluation"), (12, "checkpoint")} <= set(places)
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert (a == b) == (a["at"] != "batches"), (a, b)
    weights = [r["weights"] for r in first if r["at"] == "checkpoint"]
    assert len(set(weights)) > 3
    ranges = [r["ranges"] for r in first if r["at"] == "evaluation"]
    assert len(set(ranges)) > 3


def test_ranges_are_those_of_all_ranks(runs):
    """The union of what the ranks saw is what one process saw, to rounding."""
    folder, _ = runs
    one, two = (checkpoint.load(checkpoint.find(folder / name))["model"] for name in ("one", "two"))
    names = [name for name in one if ".z_m" in name]
    assert names
    for name in names:
        assert np.allclose(one[name], two[name], rtol=1e-4), name


def test_not_finite_on_one_rank_ends_all(runs):
    folder, printed = runs
    message = re.search(r"train.py: loss nan and .*? at step 6.*?Try a lower", printed, re.DOTALL).group()
    # samples 0..7 are of step 0; of step 6 rank 1 reads micro-batches 1 and 3, of two samples each
    assert "rank 1, samples 50 to 51: loss nan, first not finite in the output of blocks.0.ffn" in message
    assert "rank 1, samples 54 to 55" in message
    assert "rank 0" not in message
    assert "step_00000005.pt, from before" in message
    assert printed.count("loss nan and gradient norm nan") == 2
    for found in held(folder, "poisoned", 2):
        assert found[-1]["step"] == 6
    weights = checkpoint.load(checkpoint.find(folder / "poisoned"))
    assert weights["step"] == 5
    assert all(tensor.isfinite().all() for n, tensor in weights["model"].items() if ".z_m" not in n)


def test_not_finite_on_one_rank_ends_all_when_the_host_looks(runs):
    """Three steps later, with the samples of the step that it was."""
    folder, printed = runs
    (message,) = re.findall(
        r"at step 6, which was not made \(nor the 3 after it\).*?Try a lower", printed, re.DOTALL
    )
    assert "rank 1, samples 50 to 51: loss nan, first not finite in the output of blocks.0.ffn" in message
    assert "rank 0" not in message
    assert "step_00000005.pt, from before" in message
    for found in held(folder, "poisoned_unseen", 2):
        assert found[-1]["step"] == 9
    assert len(checkpoint.numbered(folder / "poisoned_unseen" / "ckpt")) == 1


def test_a_full_disk_ends_all_ranks_and_keeps_the_checkpoint(runs):
    folder, printed = runs
    assert "step_00000005.pt could not be written" in printed
    assert "earlier checkpoints are untouched" in printed
    assert checkpoint.load(checkpoint.find(folder / "full"))["step"] == 4
    assert not list((folder / "full" / "ckpt").glob("*.tmp"))


def test_the_rank_that_cannot_read_a_file_says_so_alone(runs):
    _, printed = runs
    assert printed.count("[Errno 5] Input/output error: 'train.bin'") == 1
    assert "dead or hanging" not in printed


def test_a_checkpoint_may_take_longer_than_a_collective(runs):
    """One rank writes for 5 s; the others, who wait for 3 s at most, hear meanwhile that it lives."""
    folder, printed = runs
    assert "step_00000004.pt" in [path.name for path in (folder / "slow" / "ckpt").iterdir()], printed
    assert records(folder / "slow" / "log.jsonl")[-1]["step"] == 4


def test_loaders_of_many_ranks_share_out_the_samples(dataset):
    """Also across the end of an epoch, for more ranks than this machine could run."""
    data = Dataset(dataset, "train", 32)
    steps, micro_batches, size = 3, 8, 4
    first = data.n_windows - 40
    whole = data.windows(first, steps * micro_batches * size, 5)
    for ranks in (1, 2, 4, 8):
        loaders = [Loader(data, size, 5, "cpu", first + r * size, ranks * size) for r in range(ranks)]
        for step, number in itertools.product(range(steps), range(micro_batches // ranks)):
            for rank, loader in enumerate(loaders):
                place = (step * micro_batches + number * ranks + rank) * size
                tokens, targets = next(loader)
                assert np.array_equal(tokens, whole[place : place + size, :-1])
                assert np.array_equal(targets, whole[place : place + size, 1:])


def begin(ranks, folder, arguments, *overrides):
    keys = ["--max_iters=100000", "--eval_interval=100000", "--checkpoint_interval=5", "--resume=True"]
    return subprocess.Popen(
        [*command(ranks, ROOT / "train.py"), *arguments, *PLAIN, *keys, *overrides, f"--out_dir={folder}"],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_for(condition, process, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


def workers(process):
    """The process ids of torchrun's ranks, in order."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    is_rank = lambda pid: "train.py" in Path(f"/proc/{pid}/cmdline").read_text()  # noqa: E731
    return [int(pid) for pid in children if is_rank(pid)]


def test_a_rank_that_hangs_is_named_once(arguments, tmp_path):
    """For one that dies see test_resume.py."""
    folder = tmp_path / "lost"
    process = begin(3, folder, arguments, "--distributed_timeout=10", "--gradient_accumulation_steps=3")
    wait_for(lambda: (folder / "ckpt").is_dir() and checkpoint.numbered(folder / "ckpt"), process)
    lost = workers(process)[1]
    os.kill(lost, signal.SIGSTOP)
    wait_for(lambda: len(workers(process)) < 3, process)  # another one has given up
    time.sleep(1)
    os.kill(lost, signal.SIGCONT)  # torchrun asks it to end, which it cannot hear while it is stopped
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    said = rf"did not arrive at step \d+ \(.*\); rank 1 is dead or hanging \(process {lost} on \S+\)"
    assert len(re.findall(said, printed)) == 1, printed
    assert re.search(r"--resume=True .* goes on from step_", printed)


def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(arguments, tmp_path):
    folder = tmp_path / "stopped"
    process = begin(2, folder, arguments, "--checkpoint_interval=100000")
    wait_for(lambda: (folder / "log.jsonl").is_file() and len(records(folder / "log.jsonl")) > 5, process)
    os.kill(workers(process)[1], signal.SIGTERM)
    printed, _ = process.communicate(timeout=300)
    (saved,) = checkpoint.numbered(folder / "ckpt")
    step = checkpoint.load(saved)["step"]
    assert f"stopped at step {step:,}; --resume=True --out_dir={folder} goes on\n" in printed
    assert records(folder / "log.jsonl")[-1]["step"] == step


def test_sigterm_to_the_launcher_stops_all_with_a_checkpoint(arguments, tmp_path):
    folder = tmp_path / "stopped"
    process = begin(2, folder, arguments, "--checkpoint_interval=100000")
    wait_for(lambda: (folder / "log.jsonl").is_file() and len(records(folder / "log.jsonl")) > 5, process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=300)
    (saved,) = checkpoint.numbered(folder / "ckpt")
    step = checkpoint.load(saved)["step"]
    assert f"stopped at step {step:,}; --resume=True --out_dir={folder} goes on\n" in printed
    assert printed.count("stopping after this step") == 1


def test_ranks_that_do_not_divide_the_micro_batches_are_refused(runs):
    folder, printed = runs
    told = r"gradient_accumulation_steps=3 .*WORLD_SIZE=2 does not divide it: take 2 or 4"
    assert len(re.findall(told, printed)) == 1
    assert not (folder / "undivided").exists()


def test_a_folder_in_use_is_refused_once(runs):
    folder, printed = runs
    assert printed.count("in_use is not empty") == 1
    assert [path.name for path in (folder / "in_use").iterdir()] == ["precious"]


def test_no_message_is_a_traceback(runs):
    assert "Traceback" not in runs[1]


def test_two_machines(arguments, tmp_path):
    """Two launchers that meet, each with one rank: the launch lines of two nodes, on this one."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    nodes = [
        subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1",
                f"--node_rank={node}", "--master_addr=localhost", f"--master_port={port}",
                ROOT / "train.py", *arguments, *PLAIN, "--max_iters=3", f"--out_dir={tmp_path / 'out'}",
            ],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (0, 1)
    ]  # fmt: skip
    first, second = (node.communicate(timeout=300)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], first + second
    assert "on 2 ranks" in first
    assert "step " not in second
    assert records(tmp_path / "out" / "log.jsonl")[-1]["step"] == 3


def test_the_slurm_script(run, arguments, tmp_path):
    """With stand-ins for Slurm's commands: it starts what Slurm says, and goes on with what is there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    launcher = f'#!/bin/bash\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    stand_ins = {
        "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho localhost\n",
    }
    stand_ins["torchrun"] = launcher
    for name, text in stand_ins.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_ID": "7", "PATH": f"{programs}:{os.environ['PATH']}",
    }  # fmt: skip
    text = (ROOT / "launch" / "slurm.sh").read_text().replace("source .venv/bin/activate\n", "")
    assert "#SBATCH --signal=TERM@120" in text
    folder, before = run("out", *PLAIN, "--max_iters=2")
    assert before[-1]["step"] == 2
    done = subprocess.run(  # with another number of ranks
        ["bash", "-c", text, "slurm.sh", *arguments, *PLAIN, "--max_iters=4", f"--out_dir={folder}"],
        cwd=ROOT, env={**environment(), **slurm}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert records(folder / "log.jsonl")[-1]["step"] == 4
    assert "on 2 ranks" in done.stdout
    assert "resuming from" in done.stdout


ENDS = {
    "pass": (0, ""),
    "sys.exit()": (0, ""),
    "sys.exit(143)": (143, ""),
    "sys.exit('no data')": (1, "no data\n"),
    "raise ValueError('five')": (1, "ValueError: five\n"),
}
ENDING = """
import atexit, json, os, sys
from training.distributed import ends_process

found = []
for world in (1, 2):
    for end in sys.argv[1:]:
        files = [os.memfd_create("printed") for _ in range(2)]
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            found.append([world, end, status, *(os.pread(file, 10_000, 0).decode() for file in files)])
            continue
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
        os.environ["WORLD_SIZE"] = str(world)
        atexit.register(lambda: print("Python ends"))
        with ends_process():
            print("done", end="")
            exec(end)
        sys.exit()
print(json.dumps(found))
"""


def test_ranks_end_before_python_does():
    """A rank that waits for Python's own end is sometimes aborted by gloo's threads."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING, *ENDS], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 2 * len(ENDS)
    for world, end, status, printed, errors in found:
        expected, message = ENDS[end]
        assert (status, printed) == (expected, "done" if world > 1 else "donePython ends\n"), (world, end)
        assert errors.endswith(message) if message else not errors, (world, end, errors)
