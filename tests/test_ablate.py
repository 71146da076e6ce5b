"""ablate.py: which runs there are, and that they end as if nothing had happened."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ablate
import configurator
import train
from ablation import execution
from ablation.command import parsed
from ablation.plan import Plan, claimed
from configurator import ConfigError
from training import checkpoint
from training.config import DEFAULTS, TrainConfig

ROOT = Path(__file__).resolve().parents[1]
DENSE, LADDERS = "config/gpt2.py+config/size/tiny.py", "config/cofrgenet_f.py+config/size/tiny.py"


@pytest.fixture
def command(arguments, tmp_path):
    """command(*overrides) -> a command line of ablate.py for tiny runs below tmp_path / "ablation"."""
    others = [a for a in arguments if not a.startswith(("--learning_rate=", "--min_lr="))]

    def build(*overrides, models=(DENSE,), out_dir=tmp_path / "ablation"):
        return [*models, *others, "--min_lr=1e-4", *overrides, f"--out_dir={out_dir}"]

    return build


def ablated(arguments, capsys):
    """(exit status, standard output) of ablate.py."""
    with pytest.raises(SystemExit) as stop:
        ablate.main(arguments)
    captured = capsys.readouterr()
    code = stop.value.code
    return (code, captured.out) if isinstance(code, int) else (1, code)


def refused(arguments, capsys):
    """What ablate.py complains of before anything starts."""
    with pytest.raises(SystemExit) as stop:
        ablate.main(arguments)
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def table(text):
    """The rows of a table, without what depends on the machine; and the lines below it about runs."""
    lines = text[text.index("| run ") :].splitlines()
    whole = itertools.takewhile(lambda line: line.startswith("|"), lines)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in whole]
    timed = [rows[0].index(name) for name in ("tokens/s", "minutes")]
    rows = [[cell for n, cell in enumerate(row) if n not in timed] for row in rows]
    del rows[1]  # the rule, as wide as the columns
    return rows, [line.split(" (")[0] for line in lines if line.startswith(("failed: ", "under "))]


def test_the_product(command):
    vary = ["--vary=cf_depth=1,3", "--vary=learning_rate=1e-3,2e-3 weight_decay=0.1,0.2", "--seeds=5,6"]
    _, runs, study, remarks = parsed(command(*vary, models=[DENSE, LADDERS]))
    dense, ladders = "gpt2+size-tiny", "cofrgenet_f+size-tiny"
    rates = ["learning_rate=1e-3_weight_decay=0.1", "learning_rate=2e-3_weight_decay=0.2"]
    arms = [f"{dense}_{rate}" for rate in rates]
    arms += [f"{ladders}_cf_depth={depth}_{rate}" for depth in (1, 3) for rate in rates]
    assert [run.name for run in runs] == [f"{arm}_seed={seed}" for arm in arms for seed in (5, 6)]
    assert [run.arm for run in runs] == [arm for arm in arms for _ in (5, 6)]
    assert remarks == [f"cf_depth has no effect in {dense} and is not varied there"]
    assert {"cf_depth", "learning_rate", "weight_decay", "ffn"} <= set(study)
    assert not {"seed", "out_dir"} & set(study)
    last = runs[-1].config
    assert (last["cf_depth"], last["learning_rate"], last["weight_decay"]) == (3, 2e-3, 0.2)
    assert (last["seed"], last["ffn"], last["n_embd"]) == (6, "cffn_gated", 32)
    assert runs[-1].tokens == 20 * 4 * 2 * 32


def test_how_ladders_train_is_not_varied_where_there_are_none(command):
    axes = ["--vary=ladder_lr=1.0,0.05 weight_decay=0.1,0.2", "--vary=dyadic=False,True", "--seeds=5"]
    _, runs, _, remarks = parsed(command(*axes, models=[DENSE, LADDERS]))
    dense, ladders = "gpt2+size-tiny", "cofrgenet_f+size-tiny"
    assert [run.arm for run in runs] == [
        *(f"{dense}_weight_decay={decay}" for decay in ("0.1", "0.2")),
        *(
            f"{ladders}_ladder_lr={rate}_weight_decay={decay}_dyadic={dyadic}"
            for rate, decay in (("1.0", "0.1"), ("0.05", "0.2"))
            for dyadic in (False, True)
        ),
    ]
    assert remarks == [
        f"{key} has no effect in {dense} and is not varied there" for key in ("ladder_lr", "dyadic")
    ]


def test_ladders_that_another_key_brings(command):
    axes = ["--vary=ffn=mlp,cffn_gated", "--vary=dyadic=True,False", "--seeds=5"]
    _, runs, _, remarks = parsed(command(*axes, models=[DENSE]))
    ladders = "gpt2+size-tiny_ffn=cffn_gated"
    assert [run.arm for run in runs] == [
        "gpt2+size-tiny_ffn=mlp", f"{ladders}_dyadic=True", f"{ladders}_dyadic=False",
    ]  # fmt: skip
    assert remarks == ["dyadic has no effect in gpt2+size-tiny and is not varied there"]


def test_files_on_top(command):
    files = "--vary=none,config/ablate/iclr.py,config/ablate/ladder_form.py+config/ablate/muon.py"
    _, runs, _, _ = parsed(command(files, models=[LADDERS]))
    assert [run.name for run in runs] == [
        "cofrgenet_f+size-tiny_seed=1337",
        "cofrgenet_f+size-tiny_ablate-iclr_seed=1337",
        "cofrgenet_f+size-tiny_ablate-ladder_form+ablate-muon_seed=1337",
    ]
    assert [run.config["ffn"] for run in runs] == ["cffn_gated", "cffn_product", "cffn_gated"]
    assert [run.config["optimizer"] for run in runs] == ["adamw", "adamw", "muon"]


def test_files_that_change_nothing(command, tmp_path):
    """They are left out where another model reads their keys, and refused where none does."""
    schedule, idle = "config/ablate/no_dyadic.py", tmp_path / "idle.py"
    _, runs, _, remarks = parsed(command(f"--vary=none,{schedule}", models=[DENSE, LADDERS]))
    assert [run.arm for run in runs] == [
        "gpt2+size-tiny",
        "cofrgenet_f+size-tiny",
        "cofrgenet_f+size-tiny_ablate-no_dyadic",
    ]
    same = "gpt2+size-tiny_ablate-no_dyadic is the same model as gpt2+size-tiny"
    assert remarks == [f"{same} and is not trained"]
    with pytest.raises(ConfigError, match=re.escape(same) + ".*--vary"):
        parsed(command(f"--vary=none,{schedule}"))
    with pytest.raises(ConfigError, match="is the same model as"):
        parsed(command(f"--vary=none,{schedule}", "--dyadic=False", models=[LADDERS]))
    idle.write_text("out_dir = 'elsewhere'\nbigbird_seed = 3\ntrack_project = 'mine'\n")
    with pytest.raises(ConfigError, match=r"_idle .*same model .*--vary"):
        parsed(command(f"--vary=none,{idle}", models=[DENSE, LADDERS]))
    idle.write_text("grad_clip = 0.5\n")
    assert len(parsed(command(f"--vary=none,{idle}", models=[DENSE, LADDERS]))[1]) == 4


def test_a_run_gets_its_whole_configuration_on_the_command_line(command, tmp_path):
    """So that a config file that is edited while others train changes nothing."""
    _, runs, _, _ = parsed(command("--vary=cf_eval_clip=True,False", models=[LADDERS]))
    for run in runs:
        given = execution.command(run, tmp_path, DEFAULTS)[2:]
        again = configurator.resolve(TrainConfig, given)
        assert vars(again) == {**run.config, "out_dir": str(tmp_path / run.name), "resume": True}


def test_all_mistakes_at_once(command, capsys, tmp_path):
    said = refused(command("--seed=3", "--vary=cf_depth=1,,3", "--parallel=0", "--seeds=1,x"), capsys)
    for complaint in (
        "--seed=3: give --seeds=1,2,3",
        "has an empty value",
        "parallel must be at least 1, not 0",
        "seeds: 'x' is not a whole number from 0 on",
    ):
        assert complaint in said
    said = refused(command("--vary=min_lr=1e-4,1e-3", "--vary=dyadic=True,False", "--vary=seed=1"), capsys)
    assert "min_lr is both varied and given to all" in said
    assert "seed cannot be varied" in said
    rates = "--vary=learning_rate=1e-3,1e-5"
    said = refused(command(rates, "--vary=dyadic=True,False", "--nonsense=1"), capsys)
    dense = "gpt2+size-tiny_learning_rate="
    assert f"{dense}1e-3_dyadic=True and 3 more: --nonsense=1: unknown key 'nonsense'" in said
    assert f"{dense}1e-3_dyadic=True and 1 more: dyadic=True, but attention=softmax" in said
    assert f"{dense}1e-5_dyadic=True and 1 more: min_lr=0.0001 is above learning_rate=1e-05" in said
    arguments = [a for a in command("--vary=dataset=nowhere,nowhere-else") if "--dataset=" not in a]
    said = refused(arguments, capsys)
    assert "nowhere " in said
    assert "nowhere-else " in said
    said = refused(command("--vary=score_source=False,True"), capsys)
    assert "not pairs" in said
    assert not (tmp_path / "ablation").exists()


def test_folders_that_are_refused(command, capsys, tmp_path):
    assert "holds no ablation yet" in refused([f"--out_dir={tmp_path / 'new'}"], capsys)
    assert "name the models" in refused(["--seeds=1", "--max_iters=5"], capsys)
    twice = ["config/gpt2.py", "config/gpt2.py", f"--out_dir={tmp_path / 'new'}"]
    assert "config/gpt2.py is named twice" in refused(twice, capsys)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").write_text("mine")
    assert "holds files but no ablation.json" in refused(command(out_dir=tmp_path / "mine"), capsys)
    (tmp_path / "mine" / "ablation.json").write_text("{}")
    assert "is not a list of runs" in refused(command(out_dir=tmp_path / "mine"), capsys)
    (tmp_path / "file").touch()
    assert "file is a file, and a folder is needed" in refused(command(out_dir=tmp_path / "file"), capsys)
    with claimed(tmp_path / "busy"):
        assert "another process is running the study" in refused(command(out_dir=tmp_path / "busy"), capsys)


def test_dry_run(command, capsys, tmp_path, here):
    ablate.main(command("--vary=dropout=0.0,0.1", "--seeds=1,2", "--dry_run=True"))
    said = capsys.readouterr().out
    assert "4 runs of 2 arms" in said
    assert f"to train: 4 runs, one after the other, {4 * 20 * 256:,} tokens" in said
    assert not here
    assert not (tmp_path / "ablation").exists()


def test_another_product_in_the_same_folder(command, capsys, here, tmp_path):
    first, second = (
        command("--vary=dropout=0.0,0.1", "--max_iters=10"),
        "gpt2+size-tiny_dropout=0.2_seed=1337",
    )
    assert ablated(first, capsys)[0] == 0
    assert len(here) == 2
    # more of the product: only what is new is trained, all stand in the table
    status, said = ablated(command("--vary=dropout=0.1,0.2", "--max_iters=10", "--log_interval=2"), capsys)
    assert status == 0
    assert here[2:] == [second]
    rows, lines = table(said)
    assert [row[0].split("=")[-1] for row in rows[1:]] == ["0.0", "0.1", "0.2"]
    assert lines == ["under study: dropout = 0.0, 0.1, 0.2"]
    # the same names with another configuration
    said = refused(command("--vary=dropout=0.1,0.3", "--max_iters=20"), capsys)
    assert "gpt2+size-tiny_dropout=0.1_seed=1337: max_iters was 10, now 20" in said
    assert not list((tmp_path / "ablation").glob("*0.3*"))
    # checkpoints of what is done may go
    for file in (tmp_path / "ablation").glob("*/ckpt/*"):
        file.unlink()
    assert ablated([f"--out_dir={tmp_path / 'ablation'}"], capsys)[0] == 0
    assert len(here) == 3


def test_what_a_sweep_found(command, capsys, here, monkeypatch, tmp_path):
    """A table, a warning at the edge, a picture in the folder and one of the user's own; a rate at which
    training fails was tried.
    """
    original = train.main

    def failing(argv):
        if "--learning_rate=0.04" in argv and "--ffn=swiglu" in argv:
            sys.exit("train.py: loss nan")
        original(argv)

    monkeypatch.setattr(train, "main", failing)
    folder = tmp_path / "ablation"
    (tmp_path / "swiglu.py").write_text("ffn = 'swiglu'\n")
    rates = "--vary=learning_rate=1e-4,2e-4,4e-2 min_lr=1e-5,2e-5,4e-3"
    arguments = [a for a in command("--max_iters=6", rates) if a != "--min_lr=1e-4"]
    arguments += [f"--vary=none,{tmp_path}/swiglu.py", "--eval_interval=3", "--against=learning_rate"]
    plot = ["--plot_labels=dense,ours", "--plot_size=3.3x2.4", f"--plot={tmp_path / 'rates.svg'}"]
    said = refused([*arguments, *plot, "--plot_labels=a,b,c"], capsys)
    assert "it has 3 for 2 lines: ffn=mlp, ffn=swiglu" in said
    assert "against=dropout: " in refused([*arguments, "--against=dropout"], capsys)
    assert "plot_size acts with a picture only" in refused([*arguments, plot[1]], capsys)
    assert not here
    for name in ("curves.png", "learning_rate.png"):
        said = refused([*arguments, f"--plot={folder / name}"], capsys)
        assert f"{name} is a picture" in said
    (tmp_path / "rates.svg").write_text("mine")
    assert "rates.svg exists" in refused([*arguments, *plot], capsys)
    assert (tmp_path / "rates.svg").read_text() == "mine"
    assert not here
    (tmp_path / "rates.svg").unlink()
    status, said = ablated([*arguments, *plot], capsys)
    assert status == 1
    found = said[said.index("| learning_rate | ffn=mlp, nats per token | ffn=swiglu, nats per token |") :]
    assert "ffn=swiglu: the best learning_rate of 3 is 2e-4\n" in found
    assert "failed |" in found.splitlines()[4]
    best = "ffn=mlp: the best learning_rate of 3 is 4e-2, the largest tried\n"
    assert best in found
    assert best in (folder / "table.md").read_text()
    assert ">ours</text>" in (tmp_path / "rates.svg").read_text()
    pictures = {path.name: path.read_bytes() for path in folder.glob("*.png")}
    assert pictures.keys() == {"curves.png", "learning_rate.png"}
    # they are the folder's own, and made again to the byte
    (folder / "curves.png").write_bytes(b"")
    monkeypatch.setattr(train, "main", original)
    assert ablated([f"--out_dir={folder}"], capsys)[0] == 0
    again = (folder / "curves.png").read_bytes()
    assert again.startswith(b"\x89PNG")
    assert ablated([f"--out_dir={folder}"], capsys)[0] == 0
    assert (folder / "curves.png").read_bytes() == again


def test_only_what_was_asked_for_differs(command, capsys, here):
    """A dense model and ladders with the schedule: no key is under study twice, none differs beside."""
    mine = command("--vary=weight_decay=0.1,0.2", "--max_iters=2", models=[DENSE, LADDERS])
    _, _, study, _ = parsed(mine)
    assert sorted(set(study)) == sorted(study)
    assert {"weight_decay", "ffn", "dyadic"} <= {*study}
    status, said = ablated(mine, capsys)
    assert status == 0
    assert "under study: weight_decay = 0.1, 0.2" in said
    assert "differ in more than" not in said
    assert "under study: cf_depth" not in said


def test_one_seed_of_an_arm_fails(command, capsys, here, monkeypatch, tmp_path):
    """The others of its arm make the mean; called again, it alone is tried again."""
    original = train.main

    def failing(argv):
        if "--seed=2" in argv:
            sys.exit("train.py: out of luck")
        original(argv)

    monkeypatch.setattr(train, "main", failing)
    arguments = command("--max_iters=5", "--seeds=1,2,3")
    status, said = ablated(arguments, capsys)
    assert status == 1
    rows, lines = table(said)
    assert rows[1][rows[0].index("seeds")] == "2 of 3"
    assert "±" in rows[1][rows[0].index("validation loss")]
    assert lines == ["failed: gpt2+size-tiny_seed=2: out of luck"]
    assert "out of luck" in (tmp_path / "ablation" / "table.md").read_text()
    assert "2,1\n" not in (tmp_path / "ablation" / "table.csv").read_text().splitlines()[0]
    monkeypatch.setattr(train, "main", original)
    status, said = ablated(arguments, capsys)
    assert (status, here[3:]) == (0, ["gpt2+size-tiny_seed=2"])
    rows, lines = table(said)
    assert (rows[1][rows[0].index("seeds")], lines) == ("3", [])


def test_a_process_that_fails(command, tmp_path):
    _, (run,), _, _ = parsed(command("--dataset=nowhere"))
    plan = Plan(tmp_path / "new")
    plan.folder.mkdir()
    process = execution.train(run, 0, plan.folder, DEFAULTS, [], 1)
    line = execution.ended(plan, run, process.wait(), False)
    assert line.startswith(f"failed: {run.name}: nowhere")
    assert line in f"failed: {run.name}: {Plan(plan.folder).failed[run.name]}"
    written = (plan.folder / run.name / execution.OUTPUT).read_text()
    assert written.startswith("$ ")
    assert "--dataset=nowhere" in written


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "it ended before"
        time.sleep(0.005)


def hold(process):
    """Halt the run that an ablate.py trains -> its process id."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGSTOP)
    return int(child)


def told_to_stop(child):
    """Whether a halted process has a SIGTERM before it."""
    waiting = re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{child}/status").read_text())[1]
    return bool(int(waiting, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="halts a process found in /proc")
def test_interrupted_and_killed_it_ends_with_the_same_table(command, capsys, here, tmp_path):
    """3 x 2 runs, of which one arm diverges; Ctrl-C in the first, SIGKILL in the second."""
    product = ["--vary=learning_rate=1e-3,3e-3,1e38", "--seeds=1,2", "--max_iters=40", "--dropout=0.1"]
    status, undisturbed = ablated(command(*product, out_dir=tmp_path / "whole"), capsys)
    assert status == 1

    folder = tmp_path / "ablation"
    line = [sys.executable, str(ROOT / "ablate.py"), *command(*product)]
    names = [f"gpt2+size-tiny_learning_rate=1e-3_seed={seed}" for seed in (1, 2)]

    def start():
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def saved(name):
        return checkpoint.numbered(folder / name / "ckpt")

    process = start()
    wait_for(lambda: saved(names[0]), process)
    child = hold(process)  # or it might end before ablate.py comes to tell it
    process.send_signal(signal.SIGINT)
    wait_for(lambda: told_to_stop(child), process)
    os.kill(child, signal.SIGCONT)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert f"stopped with 6 of 6 runs left. python ablate.py --out_dir={folder} goes on" in errors
    at = saved(names[0])[-1].name
    assert at < "step_00000040.pt"

    process = start()
    wait_for(lambda: saved(names[1]), process)
    child = hold(process)
    process.kill()
    process.communicate()
    os.kill(child, signal.SIGCONT)
    # what it started ends too, as nobody would be left to watch it
    while execution.locked(folder / names[1]):
        time.sleep(0.05)
    assert saved(names[1])[-1].name < "step_00000040.pt"
    assert (
        f"resuming from {folder / names[0] / 'ckpt' / at}" in (folder / names[0] / "output.log").read_text()
    )
    log = (folder / names[0] / "log.jsonl").read_bytes()

    here.clear()
    status, said = ablated(command(*product), capsys)
    assert status == 1
    assert f"{names[0]}: done" in said
    assert names[0] not in here
    assert f"resuming from {folder / names[1] / 'ckpt'}" in said
    assert (folder / names[0] / "log.jsonl").read_bytes() == log
    assert table(said) == table(undisturbed)
    rows, lines = table(said)
    assert [row[rows[0].index("seeds")] for row in rows[1:]] == ["2", "2", "0 of 2"]
    assert rows[3][rows[0].index("validation loss")] == "failed"
    assert len(lines) == 3
    assert all("which was not made" in line for line in lines if line.startswith("failed"))
    assert set(json.loads((folder / "ablation.json").read_text())["failed"]) == {
        f"gpt2+size-tiny_learning_rate=1e38_seed={seed}" for seed in (1, 2)
    }
