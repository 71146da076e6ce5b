"""Arms of several seeds, their table, their curves, and what else differs; on logs that the test writes."""

import csv
import io
import json
import math
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats

from compare import main
from comparison import sweep, table
from comparison.differences import differences
from comparison.pooled import rows_of
from comparison.report import remarks
from comparison.runs import Arm, arms, read_run, read_runs, shared_name
from comparison.significance import Difference, difference
from model import flops_per_token, parameter_counts
from models.architecture import model_config
from training.log import Log, RunFolderError

ROOT = Path(__file__).resolve().parents[2]


def cells(text):
    """A Markdown table as one dict a row."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_mean_and_deviation_over_seeds(write):
    finals = [2.0, 2.5, 2.1]
    folders = [write(f"f_seed{s}", [5.0, 1.5, x], 1000 * s, seed=s) for s, x in enumerate(finals, 1)]
    folders.append(write("other", [5.0, 4.0, 3.0], learning_rate=1e-3, min_lr=1e-4))
    found = arms(read_runs([str(f) for f in folders]))
    assert [(arm.name, len(arm.runs)) for arm in found] == [("f", 3), ("other", 1)]
    several, one = cells(table.markdown(found))
    assert several["seeds"] == "3"
    assert several["validation loss"] == f"{statistics.mean(finals):.4f} ± {statistics.stdev(finals):.4f}"
    assert several["best"] == "1.5000 ± 0.0000"
    halves = [x / 2 for x in finals]
    assert several["bits per byte"] == f"{statistics.mean(halves):.4f} ± {statistics.stdev(halves):.4f}"
    assert several["tokens/s"] == "2,000 ± 1,000"
    assert several["minutes"] == "2.0 ± 0"
    assert several["tokens trained"] == f"{20 * 4 * 2 * 32:,}"
    config = model_config(found[0].config)
    assert several["parameters"] == f"{sum(parameter_counts(config).values()):,}"
    assert several["training MFLOPs/token"] == f"{3 * flops_per_token(config) / 1e6:,.1f}"
    assert (one["seeds"], one["validation loss"], one["best"]) == ("", "3.0000", "3.0000")
    assert "clamped" not in one  # nothing here has ladders
    assert "depths wake at step" not in one


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_run_whose_last_loss_is_not_finite_is_in_the_table(write, lost):
    """It trained to its end, so that it is not among those that failed."""
    ends = {"a": (2.0, 3.0), "b": (lost, 2.0), "c": (-lost, lost)}
    folders = [
        write(f"{name}_{seed}", [5.0, 1.5, end], seed=seed, learning_rate=1e-3 * (1 + ord(name)))
        for name, of in ends.items()
        for seed, end in enumerate(of)
    ]
    found = arms(read_runs([str(f) for f in folders]))
    rows = cells(table.markdown(found, found[0].name))
    assert [row["validation loss"] for row in rows] == ["2.5000 ± 0.7071"] + 2 * ["nan ± nan"]
    assert "nan" in table.numbers(found, found[0].name)
    assert len(sweep.markdown(sweep.sweep(found, "learning_rate")).splitlines()) == 5


def test_the_same_table_as_numbers(write):
    finals = [2.0, 2.5]
    folders = [write(f"f-{s}", [5.0, x], clamped=[0.1, 0.3], seed=s) for s, x in enumerate(finals)]
    folders.append(write("g", [4.0, 3.0], learning_rate=1e-3, min_lr=1e-4))
    found = arms(read_runs([str(f) for f in folders]))
    first, second = csv.DictReader(io.StringIO(table.numbers(found)))
    assert first["run"] == "f"
    assert float(first["loss"]) == statistics.fmean(finals)
    assert float(first["loss_deviation"]) == statistics.stdev(finals)
    assert float(first["clamped"]) == pytest.approx(0.2)
    assert int(first["flops"]) == 3 * flops_per_token(model_config(found[0].config))
    assert (second["seeds"], second["loss_deviation"], second["clamped"]) == ("1", "", "")
    assert cells(table.markdown(found))[0]["clamped"] == "20.00% ± 0.00%"


def test_differences_to_a_baseline_are_paired_by_seed(write, capsys, tmp_path):
    base, better = {1: 3.0, 2: 3.5, 3: 2.5, 4: 2.0}, {1: 2.8, 2: 3.4, 3: 2.2}
    folders = [write(f"base_seed{s}", [5.0, x], seed=s) for s, x in base.items()]
    folders += [write(f"new_seed{s}", [5.0, x], n_layer=1, seed=s) for s, x in better.items()]
    folders += [
        write("same_seed1", [5.0, 3.0], n_layer=3, seed=1),
        write("none", [5.0, 1.0], n_layer=4, seed=9),
    ]
    found = arms(read_runs([str(f) for f in folders]))
    new, same, alone = (difference(arm, found[0]) for arm in found[1:])
    assert (new.pairs, same, alone) == (3, Difference(1, 0.0, None, None), None)
    each = [-0.2, -0.1, -0.3]
    expected = scipy.stats.ttest_rel([2.8, 3.4, 2.2], [3.0, 3.5, 2.5])
    assert (new.mean, new.deviation) == pytest.approx((-0.2, statistics.stdev(each)))
    assert new.p == pytest.approx(expected.pvalue)
    main([*map(str, folders), "--baseline=base", f"--plot={tmp_path}/c.png", f"--csv={tmp_path}/c.csv"])
    said = capsys.readouterr().out
    rows = cells(said[: said.index("\nmean")])
    shown = [(row["difference"], row["p"]) for row in rows]
    assert shown == [("", ""), ("-0.2000 ± 0.1000 (3)", f"{new.p:.2g}"), ("+0.0000", ""), ("", "")]
    assert "less that of base, paired by seed" in said
    row = list(csv.DictReader((tmp_path / "c.csv").open()))[1]
    assert (row["pairs"], float(row["difference"])) == ("3", pytest.approx(-0.2))
    main([*map(str, folders), f"--baseline={folders[0]}/"])
    assert "less that of base, paired" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="baseline=bass"):
        main([*map(str, folders), "--baseline=bass", f"--plot={tmp_path}/d.png"])


def test_at_which_step_differences_are(write):
    """The last one that both have, which is said where it is not that of the table; never the start."""
    keys = {"base": {}, "late": {"max_iters": 30}, "apart": {"max_iters": 33, "n_layer": 1}}
    folders = [
        write("base", [5.0, 2.0, 1.9]),
        write("late", [5.0, 2.2, 1.5, 1.4], **keys["late"]),
        write("apart", [5.3], **keys["apart"]),
    ]
    log = Log(folders[2], 1)
    log.add({"step": 33, "tokens": 0, "seconds": 0.0, "val_loss": 1.0, "val_bits_per_byte": 1.0})
    log.file.close()
    found = arms(read_runs([str(f) for f in folders]))
    assert difference(found[1], found[0]).mean == pytest.approx(1.5 - 1.9)
    assert difference(found[2], found[0]) is None
    said = [line for line in remarks(found, [], "base") if "its difference" in line]
    assert said == ["late: its difference is at step 20, the last that both have"]
    assert difference(*arms(read_runs([str(write("a", [5.0])), str(write("b", [5.5], n_layer=1))]))).mean


@pytest.mark.parametrize(("losses", "p"), [([2.0, 2.5], 1.0), ([1.5, 2.0], 0.0)])
def test_differences_that_are_all_alike(write, losses, p):
    folders = [write(f"a{s}", [5.0, x], seed=s) for s, x in enumerate([2.0, 2.5])]
    folders += [write(f"b{s}", [5.0, x], n_layer=1, seed=s) for s, x in enumerate(losses)]
    one, other = arms(read_runs([str(f) for f in folders]))
    assert difference(other, one).p == p


def test_a_run_of_another_version_is_refused(write):
    folder = write("a", [5.0, 2.0])
    config = json.loads((folder / "config.json").read_text())
    del config["cf_control"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunFolderError, match=r"key was added.*no cf_control"):
        read_run(folder)


def test_steps_at_which_depths_wake(write):
    keys = {"ffn": "cffn_added", "cf_depth": 3, "dyadic": True, "max_iters": 16}
    on, cut = write("on", [5.0], **keys), write("cut", [5.0], dyadic_iters=8, **keys)
    off = write("off", [5.0], **{**keys, "dyadic": False})
    rows = cells(table.markdown(arms(read_runs([str(f) for f in (on, cut, off)]))))
    assert [row["depths wake at step"] for row in rows] == ["8 12 14", "4 6 7", ""]


def test_failed_runs_in_the_table(write):
    whole = Arm("whole", [read_run(write("a", [5.0, 2.0]))], failed=1)
    rows = cells(table.markdown([whole, Arm("none", [], failed=2)]))
    assert (rows[0]["seeds"], rows[0]["validation loss"]) == ("1 of 2", "2.0000")
    assert (rows[1]["seeds"], rows[1]["validation loss"]) == ("0 of 2", "failed")
    numbers = list(csv.DictReader(io.StringIO(table.numbers([whole, Arm("none", [], failed=2)]))))
    assert [(row["seeds"], row["failed"]) for row in numbers] == [("1", "1"), ("0", "2")]


def test_a_seed_that_is_behind(write):
    """The mean is taken at the last step that all seeds have, and says so."""
    folders = [write("f_1", [5.0, 4.0, 3.0], seed=1), write("f_2", [5.0, 4.5], seed=2)]
    (arm,) = arms(read_runs([str(f) for f in folders]))
    assert arm.quantities()["loss"] == [4.0, 4.5]
    assert arm.quantities()["best"] == [4.0, 4.5]
    said = differences([arm], [])
    assert any(line.startswith("f: its seeds are at steps 10, 20;") for line in said)
    assert "not finished: f_2, at step 10 of 20" in said


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["dense_seed=1", "dense_seed=2"], "dense"),
        (["dense-s1", "dense-s2"], "dense"),
        (["d3_10", "d3_11"], "d3"),
        (["glass1", "glass2"], "glass"),
        (["a/1", "a/2"], "a"),
        (["x", "y"], "x"),
        (["only_1"], "only_1"),
    ],
)
def test_the_name_of_an_arm(names, name):
    assert shared_name(names) == name


def test_what_is_an_arm(write):
    """Runs of one seed, and runs that differ in a key, are never averaged."""
    one, again = write("x/f_1", [5.0, 2.0], seed=1), write("y/f_1", [5.0, 2.0], seed=1)
    other = write("f_2", [5.0, 2.0], seed=2, dropout=0.1)
    found = arms(read_runs([str(f) for f in (one, again, other, one)]))
    assert [len(arm.runs) for arm in found] == [1, 1, 1]
    assert [arm.name for arm in found] == [str(one), str(again), str(other)]


def test_keys_outside_the_study(write):
    folders = [
        write("a", [5.0, 2.0], learning_rate=1e-3, min_lr=1e-4),
        write("b", [5.0, 2.0], learning_rate=2e-3, min_lr=1e-4),
        write("c", [5.0, 2.0], learning_rate=3e-3, min_lr=1e-4, weight_decay=0.0),
    ]
    found = arms(read_runs([str(f) for f in folders]))
    assert differences(found[:2], ["learning_rate"]) == ["under study: learning_rate = 0.001, 0.002"] + [
        f"not finished: {name}, at step 10 of 20" for name in "ab"
    ]
    assert differences(found, ["weight_decay", "learning_rate"])[:2] == [
        "under study: learning_rate = 0.001, 0.002, 0.003",
        "under study: weight_decay = 0.1, 0.0",
    ]
    assert differences(found, ["learning_rate"])[:3] == [
        "under study: learning_rate = 0.001, 0.002, 0.003",
        "also differs: weight_decay = 0.1, but 0.0 in c",
        "the arms differ in more than learning_rate: their losses may differ because of weight_decay",
    ]


def test_keys_that_a_model_does_not_read_are_no_difference(write):
    """Between dense models and ladders of several depths, and between schedules and optimizers."""
    ladders = {"ffn": "cffn_gated", "dyadic": True}

    def lines(*named, study=()):
        folders = [
            write(f"{'-'.join(name for name, _ in named)}/{name}", [5.0, 4.0, 2.0], **keys)
            for name, keys in named
        ]
        return differences(arms(read_runs([str(f) for f in folders])), [*study])

    dense, other = ("dense", {"cf_depth": 1}), ("mqa", {"n_kv_head": 1, "rope_base": 500.0})
    deep = ("deep", {**ladders, "cf_depth": 5, "dyadic_iters": 20, "decay_ladders": True})
    flat = ("flat", {**ladders, "cf_depth": 1})
    assert lines(dense, other) == ["differs: n_kv_head = None, 1"]
    assert lines(dense, deep) == ["differs: ffn = 'mlp', 'cffn_gated'"]
    assert lines(dense, deep, flat) == [
        "differs: cf_depth = 5 in deep; 1 in flat",
        "differs: decay_ladders = True in deep; False in flat",
        "differs: ffn = 'cffn_gated', but 'mlp' in dense",
    ]
    assert lines(deep, ("off", {**deep[1], "dyadic": False}), study=["dyadic"]) == [
        "under study: dyadic = True, False"
    ]
    shorter = ("shorter", {**deep[1], "dyadic_iters": 10})
    assert lines(deep, shorter) == ["differs: dyadic_iters = None, 10"]
    adamw, muon = ("adamw", {}), ("muon", {"optimizer": "muon", "muon_learning_rate": 0.01})
    assert lines(adamw, muon) == ["differs: optimizer = 'adamw', 'muon'"]


def test_a_key_is_named_once(write):
    folders = [write(name, [5.0, 4.0, 2.0], **keys) for name, keys in (
        ("a", {}), ("b", {"dropout": 0.1}), ("c", {"weight_decay": 0.0}),
    )]  # fmt: skip
    found = arms(read_runs([str(f) for f in folders]))
    told = differences(found, ["dropout", "dropout"])[-1]
    assert re.search(r"more than dropout\b[^,]* weight_decay$", told)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"dataset": "data/b"}, "dataset"),
        ({"seed": 2}, "seed"),
        ({"batch_size": 8}, "tokens per step, tokens"),
        ({"block_size": 16}, "block_size, tokens per step, tokens"),
        # as many micro-batches of half the size are the same batches
        ({"batch_size": 8, "gradient_accumulation_steps": 1}, None),
        ({"eval_tokens": 640}, None),
        ({"dropout": 0.1}, None),
    ],
)
def test_different_batches(write, keys, what):
    first = write("a", [5.0, 4.0, 2.0])
    second = write("b", [5.0, 4.0, 2.0], **{"weight_decay": 0.0, **keys})
    said = differences(arms(read_runs([str(first), str(second)])), [])
    batches = [line for line in said if line.startswith("different batches")]
    assert [line.partition(" the same ")[2] for line in batches] == ([what] if what else [])
    scored = [line for line in said if "validation losses are of different tokens" in line]
    assert len(scored) == len(keys.keys() & {"dataset", "block_size", "eval_tokens"})


def test_arms_of_the_same_seeds_saw_the_same_batches(write):
    def lines(seeds):
        folders = [write(f"{seeds}/a_{s}", [5.0, 4.0, 2.0], seed=s) for s in (1, 2)]
        folders += [write(f"{seeds}/b_{s}", [5.0, 4.0, 2.0], seed=s, dropout=0.1) for s in seeds]
        return differences(arms(read_runs([str(f) for f in folders])), [])

    assert lines((2, 1)) == ["differs: dropout = 0.0, 0.1"]
    assert lines((1, 3))[1:] == [
        "differs: seed = (1, 2), (1, 3)",
        "different batches: the arms do not have the same seed",
    ]


def test_a_key_that_changed_on_the_way_is_told(write):
    folder = write("a", [5.0, 4.0, 2.0])
    with open(folder / "log.jsonl", "a") as file:
        file.write(json.dumps({"step": 15, "tokens": 1, "resumed": {"dropout": "dropout was 0.1"}}) + "\n")
    said = differences([Arm("a", [read_run(folder)])], [])
    assert said == [f"changed on the way: {folder}, at step 15: dropout was 0.1"]


def test_files(write, tmp_path, capsys):
    folders = [str(write(f"f_{s}", [5.0, 4.0, 2.0 + s], seed=s)) for s in (1, 2)]
    out = tmp_path / "new"
    options = [f"--{key}={out / name}" for key, name in (("markdown", "t.md"), ("csv", "t.csv"))]
    options += [f"--plot={out / 'p.png'}", "--against=hours"]
    main([*folders, *options])
    printed = capsys.readouterr().out
    text = (out / "t.md").read_text()
    assert text.startswith(printed[: printed.index("\nmean ±")])
    assert "- mean ± sample standard deviation over seeds\n" in text
    assert text.endswith("![validation loss against hours](p.png)\n")
    assert (out / "t.csv").read_text().startswith("run,seeds,")
    assert (out / "p.png").read_bytes().startswith(b"\x89PNG")
    main([*folders, *options[:2]])  # its own files are replaced
    with pytest.raises(SystemExit):
        main([*folders, *options])
    assert "p.png exists: move it away" in capsys.readouterr().err


def test_no_file_of_somebody_else_is_replaced(write, tmp_path, capsys):
    folder = write("f", [5.0, 2.0])
    mine = {name: tmp_path / name for name in ("notes.md", "data.csv")}
    for path in mine.values():
        path.write_text("# mine")
    with pytest.raises(SystemExit):
        main(
            [
                str(folder),
                *(f"--{key}={path}" for key, path in zip(("markdown", "csv"), mine.values(), strict=True)),
            ]
        )
    said = capsys.readouterr().err
    assert said.count("exists and is none of") == 2
    assert {path.read_text() for path in mine.values()} == {"# mine"}


def test_a_key_under_study_that_no_run_has(write):
    with pytest.raises(SystemExit, match=r"'cf_dept'.*cf_depth"):
        main([str(write("f", [5.0, 2.0])), "--study=cf_dept"])


def test_a_folder_without_an_evaluation(write):
    with pytest.raises(RunFolderError, match="no evaluation"):
        read_run(write("f", []))


@pytest.mark.parametrize("key", ["val_bits_per_byte", "seconds"])
def test_an_evaluation_that_lacks_a_number(write, key):
    folder = write("a", [3.0, 2.0])
    log = folder / "log.jsonl"
    *lines, last = log.read_text().splitlines()
    log.write_text("\n".join([*lines, json.dumps({**json.loads(last), key: None})]) + "\n")
    with pytest.raises(RunFolderError, match=rf"log\.jsonl.*{key}.*step 10.*None"):
        read_run(folder)


def test_a_reader_that_has_had_enough(write, tmp_path):
    """compare.py ... | head -1"""
    folder = write("f", [5.0, 2.0])
    command = [sys.executable, str(ROOT / "compare.py"), str(folder), f"--plot={tmp_path / 'a.png'}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()  # before it prints
    assert process.stderr.read() == ""
    process.wait()
    assert (tmp_path / "a.png").is_file()


def test_gradients_of_the_rows_are_those_after_the_warmup(write):
    folder = write("a", [5.0, 4.0, 3.0], warmup_iters=2)
    norms = {1: 50.0, 2: 60.0, 3: 1.0, 5: 2.0, 10: 3.0, 15: 40.0, 20: 5.0}
    with (folder / "log.jsonl").open("a") as file:
        for step, norm in norms.items():
            file.write(json.dumps({"step": step, "tokens": 0, "seconds": 0.0, "grad_norm": norm}) + "\n")
    (arm,) = arms(read_runs([str(folder)]))
    keys = ("gradient_median", "gradient_95", "gradient_largest", "spikes")
    found = [[row[key] for key in keys] for row in rows_of(arm)]
    assert found == [[None] * 4, [2.0, 3.0, 3.0, 0], [3.0, 40.0, 40.0, 1]]


def test_the_last_step_is_one_that_both_evaluated(write):
    folders = [write("base", [5.0, 3.0, 2.0]), write("short", [5.0, 2.5], n_layer=1)]
    base, short = arms(read_runs([str(f) for f in folders]))
    assert difference(short, base).mean == -0.5
