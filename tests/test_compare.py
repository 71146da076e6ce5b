import dataclasses
import json

import pytest

from compare import main
from training.config import TrainConfig


def test_table_and_picture(run, capsys, tmp_path):
    dense, _ = run("dense", "--max_iters=10")
    full, records = run("full", "--max_iters=10", "--attention=cattn_m", "--ffn=cffn_added")
    capsys.readouterr()
    main([str(dense), str(full), f"--plot={tmp_path / 'new' / 'both.png'}"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["run", lines[1].split()[1], "dense", "full"]
    assert set(lines[1]) == set("|-: ")
    assert len({len(line) for line in lines[:4]}) == 1
    final = [r for r in records if "val_loss" in r][-1]
    assert f"{final['val_bits_per_byte']:.4f}" in lines[3]
    assert f"{final['tokens']:,}" in lines[3]
    assert lines[4:6] == ["differs: attention = 'softmax', 'cattn_m'", "differs: ffn = 'mlp', 'cffn_added'"]
    assert (tmp_path / "new" / "both.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_the_same_name_keep_their_paths(run, capsys, tmp_path):
    first, _ = run("x/same", "--max_iters=2")
    second, _ = run("y/same", "--max_iters=2", "--seed=2", "--dropout=0.1")
    capsys.readouterr()
    main([str(first), str(second), f"--plot={tmp_path / 'a.png'}"])
    said = capsys.readouterr().out
    assert f"| {first} " in said
    assert f"| {second} " in said


def test_without_plot_no_picture_is_written(run, capsys, tmp_path, monkeypatch):
    folder, _ = run("a", "--max_iters=2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "compare.png").write_text("of other runs")
    capsys.readouterr()
    main([str(folder)])
    assert "picture" not in capsys.readouterr().out
    assert (tmp_path / "out" / "compare.png").read_text() == "of other runs"
    with pytest.raises(SystemExit):
        main([str(folder), "--picture=ladders"])
    assert "picture=ladders is drawn with" in capsys.readouterr().err


def test_says_when_the_losses_are_of_different_tokens(run, capsys, tmp_path):
    first, _ = run("first", "--max_iters=2")
    second, _ = run("second", "--max_iters=2", "--block_size=16", "--seed=2")
    capsys.readouterr()
    main([str(first), str(second), f"--plot={tmp_path / 'a.png'}"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("differs: block_size = 32, 16; ") for line in lines)
    assert "differs: seed = 1337, 2" in lines


def test_a_log_cut_off_by_a_kill_is_read(run, capsys, tmp_path):
    folder, _ = run("a", "--max_iters=5")
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    main([str(folder), f"--plot={tmp_path / 'a.png'}"])
    assert "1,280" in capsys.readouterr().out  # 5 steps of 256 tokens


def test_what_it_refuses(tmp_path, capsys):
    def said(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        return str(stop.value.code) + capsys.readouterr().err

    assert f"{tmp_path / 'none'} does not exist" in said(tmp_path / "none")
    (tmp_path / "rates" / "a").mkdir(parents=True)
    assert "is not a run folder" in said(tmp_path / "rates")
    (tmp_path / "rates" / "a" / "config.json").write_text("{}")
    assert f"rates is a folder of runs: write {tmp_path}/rates/*/" in said(tmp_path / "rates")
    told = said(tmp_path, "config/demo_dense.py")
    assert "config/demo_dense.py is a config" in told
    assert "out/demo" in told
    assert "--runs=... is required (usage: " in said()
    assert " RUNS [--key=value ...])" in said()
    (tmp_path / "config.json").write_text("{}")  # of a model that export.py wrote
    assert "is not a run folder of train.py (it has no log.jsonl)" in said(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    assert "it was saved before a key was added or removed" in said(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(TrainConfig())))
    assert "has no evaluation in its log yet" in said(tmp_path)
