"""scale.py: complete tiny studies, and what it refuses before anything starts."""

import csv
import json
import os
import re
import shutil
from dataclasses import replace

import pytest

import scale
from ablation import execution
from ablation.deadline import Deadline
from corpus.binary import prepare
from scaling import step_times
from scaling.points import AMOUNTS, write
from tests.corpus.test_pairs import pairs_of
from tests.scaling.conftest import DENSE, LADDERS
from tests.scaling.synthetic import points

TINY = ("--sizes=4K,8K:1,16K:1", "--tokens_per_parameter=0.5", "--seeds=1,2")
TINY += ("--rates=16e-3,32e-3", "--parallel=1", "--samples=5")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Measurements of a single step."""
    monkeypatch.setattr(step_times, "AT_LEAST", 0.0)


def scaled(arguments, capsys):
    """(exit status, standard output) of scale.py."""
    status = 0
    try:
        scale.main(arguments)
    except SystemExit as stop:
        status = stop.code
    return status, capsys.readouterr().out


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        scale.main(arguments)
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_complete_study(command, capsys, here, tmp_path):
    folder = tmp_path / "scaling"
    status, said = scaled(command(*TINY, "--dry_run=True"), capsys)
    assert (status, here, folder.exists()) == (0, [], False)
    table = [line for line in said.splitlines() if line.startswith("| ")]
    assert len(table) == 2 + 2 * 3
    assert all("swept" in line for line in table[2:])
    assert re.search(r"\d+ runs in .*, 0 of them done; about \S+ of \S+ hours left", said)

    status, said = scaled(command(*TINY), capsys)
    assert status == 0
    found = rows(folder / "points.csv")
    # size 4K with two seeds, the others with one; besides, rates of the sweeps
    assert sum(row["rule"] == "1" for row in found) == 2 * 4
    assert sum(row["rule"] == "0" for row in found) >= 2 * (2 * 2 + 2)
    assert len(found) == len(here) == len(set(here))
    assert all(2 < float(row["loss"]) < 6 for row in found)
    for row in found:
        assert abs(int(row["parameters"]) / {"4K": 4e3, "8K": 8e3, "16K": 16e3}[row["size"]] - 1) <= 0.05
        tokens = float(row["tokens_per_parameter"]) * {"4K": 4e3, "8K": 8e3, "16K": 16e3}[row["size"]]
        assert abs(int(row["tokens"]) - tokens) <= 2.5 * 256 or int(row["tokens"]) == 5 * 256
    page = (folder / "scaling.md").read_text()
    assert page.count("\n    python scale.py") == 1
    for part in ("## Multipliers", "## Fits", "## What was trained", "Learning rates"):
        assert part in page
    assert "| L(N) " in page
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert len({row["family"] for row in rows(folder / "fits.csv")}) == 2
    assert {row["amount"] for row in rows(folder / "multipliers.csv")} == set(AMOUNTS)

    # called again, nothing is trained, and all is made again to the byte
    before = {path.name: path.read_bytes() for path in folder.glob("scaling.*")}
    here.clear()
    status, said = scaled(command(*TINY), capsys)
    assert (status, here) == (0, [])
    assert re.search(r"\b(\d+) runs in .*, \1 of them done; about 0 of", said)
    assert {path.name: path.read_bytes() for path in folder.glob("scaling.*")} == before

    # and from the CSV alone
    again = tmp_path / "again"
    arguments = [f"--points={folder / 'points.csv'}", f"--out_dir={again}", "--samples=5"]
    assert scaled(arguments, capsys)[0] == 0
    for name in ("fits.csv", "multipliers.csv", "points.csv", "scaling.png"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()

    # another size of one family in the same folder: no sweep
    here.clear()
    others = [key for key in TINY if not key.startswith(("--sizes", "--seeds"))]
    larger = command("--sizes=24K", "--seeds=1", *others)
    steps = json.loads((folder / "scaling.json").read_text())["seconds"]
    assert scaled(larger, capsys)[0] == 0
    again = json.loads((folder / "scaling.json").read_text())["seconds"]
    for family, known in steps.items():  # measured once more, together with the new ones
        assert len(again[family]) == len(known) + 1
        assert all(again[family][size] != known[size] for size in known)
    assert "- the middle half of 7 measurements" in (folder / "scaling.md").read_text()
    assert len(here) == 2
    assert {row["size"] for row in rows(folder / "points.csv")} == {"4K", "8K", "16K", "24K"}
    assert (folder / "scaling.md").read_text().count("\n    python scale.py") == 2

    # a dry run refuses what the command would refuse
    state = folder / "ablation.json"
    state.write_text(state.read_text().replace('"weight_decay": 0.1', '"weight_decay": 0.2'))
    assert "another configuration" in refused(command(*TINY, "--dry_run=True"), capsys)


def test_minutes_that_are_over_and_a_folder_without_checkpoints(
    command, capsys, here, tmp_path, monkeypatch
):
    """What did not fit is left to the same command. It goes on elsewhere with what one carries along: a
    run that was cut off begins anew, and no other one is trained again.
    """
    short = command("--sizes=4K", "--seeds=1,2", *TINY[1:2], "--rates=16e-3", *TINY[4:])
    with monkeypatch.context() as patch:
        patch.setattr(Deadline, "fits", lambda self, hours: len(here) < 3)
        status, said = scaled([*short, "--minutes=9"], capsys)
    assert (status, len(here)) == (0, 3)
    assert re.search(
        r"\nthe minutes are over: 1 of 4 runs are left, \S+ hours of .* command goes on\n", said
    )
    assert len(rows(tmp_path / "scaling" / "points.csv")) == 3

    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "scaling", elsewhere, ignore=shutil.ignore_patterns("ckpt", "*.png"))
    cut = elsewhere / here[0] / "log.jsonl"
    cut.write_text(cut.read_text().splitlines(keepends=True)[0])
    state = elsewhere / "ablation.json"
    kept = json.loads(state.read_text())
    state.write_text(json.dumps({**kept, "done": [name for name in kept["done"] if name != here[0]]}))
    first = here.copy()
    here.clear()
    short = [f"--out_dir={elsewhere}" if one.startswith("--out_dir=") else one for one in short]
    assert scaled(short, capsys)[0] == 0
    assert here[0] == first[0]
    assert len(here) == 2
    assert len(rows(elsewhere / "points.csv")) == 4


def test_that_it_compiles_is_said_before(command, capsys, monkeypatch):
    said = []

    def measured(models, parallel):
        said.append(capsys.readouterr().out)
        return dict.fromkeys(models, [1.0] * 7), 0

    monkeypatch.setattr(step_times, "measure", measured)
    keys = ("--sizes=4K,8K", "--tokens_per_parameter=0.3", "--seeds=1", "--dry_run=True")
    assert scaled(command(*keys, "--compile=True"), capsys)[0] == 0
    assert scaled(command(*keys), capsys)[0] == 0
    assert said[0].endswith("compiling 4 models, a minute or so each; --compile=False goes without\n")
    assert "compiling" not in said[1]


def test_a_run_that_fails_is_tried_again(command, capsys, here, monkeypatch, tmp_path):
    original = execution.train
    keys = ("--sizes=4K", "--tokens_per_parameter=0.3", "--seeds=1,2", "--rates=4e-3", "--parallel=1")
    arguments = command(*keys, models=(DENSE,))

    def failing(run, slot, folder, **others):
        ended.append(len(rows(folder / "points.csv")))
        process = original(run, slot, folder, **others)
        if run.config["seed"] == 2:
            (folder / run.name / "log.jsonl").unlink()
            process.returncode = 1
        return process

    ended = []
    monkeypatch.setattr(execution, "train", failing)
    status, said = scaled(arguments, capsys)
    assert status == 1
    assert ended == [0, 1]  # rows that a page of the unfinished study has
    assert "failed: " in said
    assert "seed=2" in said
    assert "1 run failed at the rule's learning rate" in (tmp_path / "scaling" / "scaling.md").read_text()
    monkeypatch.setattr(execution, "train", original)
    here.clear()
    status, said = scaled(arguments, capsys)
    assert (status, len(here)) == (0, 1)
    assert "failed" not in (tmp_path / "scaling" / "scaling.md").read_text()


def test_a_study_whose_hours_are_not_known(capsys, tmp_path):
    write(tmp_path / "points.csv", [replace(p, hours=None) for p in points()])
    page = tmp_path / "page"
    arguments = [f"--points={tmp_path / 'points.csv'}", f"--out_dir={page}", "--samples=1"]
    status, said = scaled(arguments, capsys)
    assert status == 0
    assert "no hours: step times are not known" in said
    heads = [line for line in (page / "scaling.md").read_text().splitlines() if line.startswith("| family")]
    assert ["hours" in head for head in heads].count(True) == 1  # of what was trained
    assert {row["amount"] for row in rows(page / "multipliers.csv")} == set(AMOUNTS) - {"hours"}


def test_the_page_of_known_curves(capsys, tmp_path):
    """Of points with known constants; with a picture for a paper."""
    write(tmp_path / "points.csv", points())
    arguments = [f"--points={tmp_path / 'points.csv'}", f"--out_dir={tmp_path / 'page'}", "--samples=10"]
    arguments.append("--plot_labels=Transformer,ours")
    size = "--plot_size=7x5"
    assert "plot_size acts with a picture only" in refused([*arguments, size], capsys)
    assert scaled(arguments, capsys)[0] == 0
    arguments += [f"--plot={tmp_path / 'frontier.svg'}", size]
    status, said = scaled(arguments, capsys)
    assert status == 0
    page = (tmp_path / "page" / "scaling.md").read_text()
    assert re.search(r"\| ours +\| +(none: ours, 100%|[\d,]+ \()", page)
    assert page.count("\n| L(N) ") == 2 + 2  # fits, and the held-out size
    assert "no curve" not in page
    assert page.count("by the fits of L(N)") == 1
    assert "the largest size, as the fit of all smaller ones predicts it" in page.lower()
    assert ">Transformer</text>" in (tmp_path / "frontier.svg").read_text()
    assert "page: " in said
    change = r"\| {} +\| +\S+ \| +\S+ \| +\S+ \(\S+ to \S+\): {} \|"
    assert re.search(change.format("ours", "shrinks"), page)
    assert "frontier.svg exists: move it away" in refused([*arguments, "--baseline=ours"], capsys)
    assert (tmp_path / "page" / "scaling.md").read_text() == page
    (tmp_path / "frontier.svg").unlink()
    assert scaled([*arguments, "--baseline=ours"], capsys)[0] == 0
    turned = (tmp_path / "page" / "scaling.md").read_text()
    legend = re.findall(r">(Transformer|ours)</text>", (tmp_path / "frontier.svg").read_text())
    assert legend == ["ours", "Transformer"]
    assert "Baseline: ours." in turned
    assert re.search(change.format("Transformer", "grows"), turned)
    (tmp_path / "frontier.svg").unlink()
    assert scaled([*arguments, "--baseline=ours,Transformer"], capsys)[0] == 0
    both = (tmp_path / "page" / "scaling.md").read_text()
    first, second = both.split("## Multipliers over Transformer\n")
    assert "Baseline: ours." in first
    for half, family, way in ((first, "Transformer", "grows"), (second, "ours", "shrinks")):
        assert re.search(change.format(family, way), half)
    texts = re.sub(r"<[^>]*>", " ", (tmp_path / "frontier.svg").read_text()).split()
    assert {"ours)", "Transformer)"} < set(texts)  # (above 1: better than ours)
    found = {row["baseline"]: row["family"] for row in rows(tmp_path / "page" / "multipliers.csv")}
    assert found == {"ours": "dense", "dense": "ours"}
    (tmp_path / "frontier.svg").unlink()
    assert "7x3 is too small for 3 x 3 panels" in refused(
        [*arguments[:-1], "--plot_size=7x3", "--baseline=ours,dense"], capsys
    )
    assert "named twice" in refused([*arguments, "--baseline=Transformer,dense"], capsys)
    assert "baseline=theirs" in refused([*arguments, "--baseline=theirs"], capsys)
    said = refused([*arguments, "--sizes=1M", "--dry_run"], capsys)
    assert "--sizes=1M --dry_run" in said
    assert "cannot be made (" in refused([*arguments, "--out_dir=/proc/page"], capsys)
    (tmp_path / "page" / "scaling.md").write_text("mine")
    assert "exists and is none of" in refused(arguments, capsys)
    assert (tmp_path / "page" / "scaling.md").read_text() == "mine"
    (tmp_path / "page" / "scaling.md").unlink()
    assert "scaling.png exists, and no scaling.md" in refused(arguments, capsys)
    arguments = [each for each in arguments if not each.startswith(("--plot=", "--plot_size"))]
    own = [*arguments, f"--plot={tmp_path / 'page' / 'scaling.png'}"]
    assert "scaling.png is a picture" in refused(own, capsys)


def test_points_are_not_lost(capsys, tmp_path):
    """Those of another run in the same place, of a study's folder, and of a file that does not agree."""
    some = points()
    write(tmp_path / "all.csv", some)
    write(tmp_path / "half.csv", some[::2])
    write(tmp_path / "shorter.csv", points(ratio=5.0))
    write(tmp_path / "other.csv", [*some[:3], replace(some[3], loss=some[3].loss + 0.1)])
    write(tmp_path / "tried.csv", [replace(some[3], rule=0, hours=2 * some[3].hours)])

    def draw(*names, do=scaled):
        files = ",".join(str(tmp_path / name) for name in names)
        return do([f"--points={files}", f"--out_dir={tmp_path / 'page'}", "--samples=1"], capsys)

    assert draw("all.csv")[0] == 0
    page = (tmp_path / "page" / "points.csv").read_bytes()
    said = draw("half.csv", do=refused)
    assert f"holds {len(some) // 2} runs that --points" in said
    said = draw("all.csv", "shorter.csv", do=refused)
    assert "has runs with 5, 20 tokens per parameter" in said
    said = draw("all.csv", "other.csv", do=refused)
    assert re.search(r"line 5 of \S+other.csv is about a run that \S+all.csv has with another result", said)
    assert (tmp_path / "page" / "points.csv").read_bytes() == page
    assert draw("half.csv", "all.csv", "tried.csv")[0] == 0
    kept = rows(tmp_path / "page" / "points.csv")
    assert {row["rule"] for row in kept} == {"1"}  # at the rule's rate, whatever one file says of a run
    assert {row["hours"] for row in kept} == {""}  # of two files
    other_rate = [replace(p, learning_rate=2 * p.learning_rate) for p in some if p.size == some[0].size]
    write(tmp_path / "other_study.csv", other_rate)
    assert draw("half.csv", "other_study.csv", "all.csv")[0] == 0
    places = [(row["family"], float(row["size"][:-1])) for row in rows(tmp_path / "page" / "points.csv")]
    assert places == sorted(places)
    ruled = {row["learning_rate"] for row in rows(tmp_path / "page" / "points.csv") if row["rule"] == "1"}
    assert ruled == {str(p.learning_rate) for p in some}
    (tmp_path / "page" / "points.csv").unlink()
    assert draw("all.csv", "other_study.csv")[0] == 0
    found = rows(tmp_path / "page" / "points.csv")
    assert len(found) == len(some) + len(other_rate)
    assert sum(row["rule"] == "1" for row in found) == len(some)
    (tmp_path / "page" / "points.csv").unlink()
    left = [replace(p, rule=int(p.place != some[0].place)) for p in some]
    write(tmp_path / "left.csv", left)
    told = f"no run has the rule's learning rate: {some[0].family} at {some[0].size}\n"
    assert told in draw("left.csv")[1]
    text = (tmp_path / "all.csv").read_text()
    (tmp_path / "cut.csv").write_text(text[:-2])
    assert "ends in the middle of a line" in draw("cut.csv", do=refused)
    (tmp_path / "cut.csv").write_text(text[:-20] + "\n")
    assert "does not have the 16 cells" in draw("cut.csv", do=refused)
    (tmp_path / "page" / "scaling.json").write_text("{}")
    assert "is the folder of a study" in draw("all.csv", do=refused)


def test_what_one_seed_says(capsys, tmp_path):
    """No interval, and nothing that one would be needed for."""
    write(tmp_path / "points.csv", points(seeds=(1,)))
    arguments = [f"--points={tmp_path / 'points.csv'}", f"--out_dir={tmp_path / 'page'}"]
    assert scaled(arguments, capsys)[0] == 0
    page = (tmp_path / "page" / "scaling.md").read_text()
    assert "How the multipliers change" in page
    assert "shrinks" not in page
    assert "95 %" not in page.split("## Multipliers")[1]
    assert not re.search(r"\d %|\d to \d", page.split("## Multipliers")[1])


def test_what_is_said_before_anything_starts(command, capsys):
    """About text that is read again, and learning rates."""
    some = ("--sizes=20K,0.2M", "--seeds=1,2", "--dry_run=True", "--parallel=3")
    status, said = scaled(command(*some, "--tokens_per_parameter=1"), capsys)
    assert status == 0
    assert "44,262 training tokens 4.5 times" in said
    assert "3 at a time" in said
    assert "gpt2: learning rate swept at 20K, from 3e-4, 6e-4, 1.2e-3, and swept at 0.2M\n" in said
    # six of each sweep, two of each size
    assert f"{2 * (6 + 6 + 2 + 2)} runs in" in said
    _, said = scaled(command(*some, "--tokens_per_parameter=0.2", "--rates=1e-3"), capsys)
    assert "training tokens" not in said
    assert re.search(r"gpt2: learning rate 1e-3 at width \d+; from there it falls with the width\n", said)
    assert "at 0.2M, half and twice" in said


def test_all_mistakes_at_once(command, capsys, tmp_path):
    wrong = ("--sizes=4K,big", "--seed=3", "--max_iters=5", "--parallel=0", "--no_such=1")
    said = refused(command(*wrong), capsys)
    for complaint in (
        "sizes: 'big' is no size",
        "--seed=3: give --seeds=1,2,3",
        "--max_iters=5: it follows from",
        "parallel must be at least 1, not 0",
        "unknown key 'no_such'",
    ):
        assert complaint in said
    several = refused(command("--sizes=4K", "--tokens_per_parameter=5,10"), capsys)
    assert "--tokens_per_parameter=5,10: " in several
    assert "give the sizes" in refused(command(), capsys)
    assert "named twice" in refused(command("--sizes=4K", models=(DENSE, DENSE)), capsys)
    assert "16K:3 is more than the 2 seeds" in refused(command("--sizes=4K,16K:3", "--seeds=1,2"), capsys)
    small = refused(command("--sizes=4K,8K", "--check_size=4K"), capsys)
    assert "check_size=4K is swept" in small
    assert "check_size=9K is none of the sizes" in refused(command("--sizes=4K", "--check_size=9K"), capsys)
    assert "name the families" in refused(["--sizes=4K"], capsys)
    assert "name the families" in refused([f"--out_dir={tmp_path / 'new'}"], capsys)
    assert "is an overlay" in refused(["config/study/rope.py", "--sizes=4K"], capsys)
    assert "trains nothing: leave out" in refused(["config/gpt2.py", "--points=a.csv"], capsys)
    assert "cannot be read" in refused([f"--points={tmp_path / 'none.csv'}"], capsys)
    os.mkfifo(tmp_path / "pipe.csv")
    assert "it is a named pipe" in refused([f"--points={tmp_path / 'pipe.csv'}"], capsys)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "its columns are others" in refused([f"--points={tmp_path / 'other.csv'}"], capsys)
    (tmp_path / "empty.csv").touch()
    assert "no run has ended yet" in refused([f"--points={tmp_path / 'empty.csv'}"], capsys)
    write(tmp_path / "none_yet.csv", [])
    assert "no run has ended yet" in refused([f"--points={tmp_path / 'none_yet.csv'}"], capsys)
    missing = [a for a in command("--sizes=4K", "--dataset=nowhere") if "bytes" not in a]
    assert "nowhere" in refused(missing, capsys)
    assert not (tmp_path / "scaling").exists()
    pairs = tmp_path / "pairs"
    prepare(lambda: pairs_of(60), {"made": "up"}, "bytes", pairs, 0.3, 1, pairs=True)
    of_pairs = [a for a in command("--sizes=4K", f"--dataset={pairs}") if "bytes" not in a]
    assert f"dataset: {pairs} holds pairs" in refused(of_pairs, capsys)
    small = command("--sizes=4K", "--plot=a.pdf", "--plot_size=3x3")
    assert "too small for 2 x 3 panels" in refused(small, capsys)
    labels = command("--sizes=4K", "--plot=a.pdf", "--plot_labels=one")
    assert "plot_labels needs a label for each line" in refused(labels, capsys)
    assert not (tmp_path / "scaling" / "scaling.json").exists()


def test_the_recipe_is_the_first_family_s(command, capsys, tmp_path):
    """Its data, its block size and its optimizer, whatever the other files say."""
    (tmp_path / "mine.py").write_text(
        "n_layer = 3\nn_head = 2\nn_embd = 48\nffn = 'swiglu'\nlearning_rate = 1.0\nblock_size = 8\n"
        "optimizer = 'muon'\ndataset = 'nowhere'\ndropout = 0.5\n"
    )
    arguments = command("--sizes=20K", models=(LADDERS, str(tmp_path / "mine.py")))
    _, (first, other), remarks = scale.parsed([a for a in arguments if not a.startswith("--dropout=")])
    assert (other.config.ffn, other.config.n_layer) == ("swiglu", 3)
    for key in ("learning_rate", "block_size", "optimizer", "dataset", "dropout", "weight_decay"):
        assert getattr(other.config, key) == getattr(first.config, key)
    assert (first.config.dyadic, other.config.dyadic) == (True, False)
    assert "dropout=0.5, optimizer=muon, learning_rate=1.0 not taken" in remarks[0]
