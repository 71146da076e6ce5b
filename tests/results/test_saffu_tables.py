"""The study of explicit SAFFU: units computed once give the models of train.py, and the page is that of the
CSVs.
"""

import itertools
import json

import pytest

import train
from results.saffu import cells, page, tables

SMALL = {
    "vocab_size": 257, "block_size": 32, "saffu_block": 9, "saffu_radius": 4, "saffu_block_width": 16,
    "saffu_radius_width": 10, "saffu_hidden": 24, "saffu_tokens": 6_000, "batch_size": 4,
    "eval_tokens": 640, "device": "cpu", "dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize(("block", "radius"), itertools.product(tables.MODES, tables.MODES))
def test_units_computed_once_give_the_model_of_train(dataset, tmp_path, block, radius, capsys):
    keys = SMALL | {"saffu_block_mode": block, "saffu_radius_mode": radius}
    config = cells.config_of(dataset, **keys)
    corpus = cells.Corpus(config)
    source = cells.counted(config, corpus)
    known = [cells.unit(config, kind, corpus, source) for kind in ("block", "radius")]
    found = cells.joined(config, corpus, known)
    assert found["dev"] == pytest.approx(cells.whole(config, corpus)["dev"], rel=1e-6)
    assert found["train"]["loss without end"] != found["train"]["loss"]
    given = [f"--{key}={value}" for key, value in keys.items()]
    given += [f"--dataset={dataset}", "--saffu_only=True", "--saffu_tuning=0", "--compile=False"]
    train.main([cells.PAPER, *given, f"--out_dir={tmp_path / 'run'}"])
    (record,) = map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines())
    assert found["dev"]["loss"] == pytest.approx(record["val_loss"], rel=1e-6)
    assert found["dev"]["bits per byte"] == pytest.approx(record["val_bits_per_byte"], rel=1e-6)


def test_held_out_windows_are_not_counted(dataset):
    corpus = cells.Corpus(cells.config_of(dataset, **SMALL), held=True)
    counted = {tuple(window) for window in corpus.counted.tolist()}
    assert {tuple(window) for window in corpus.scored["train"].tolist()} <= counted
    assert not {tuple(window) for window in corpus.scored["held"].tolist()} & counted


def test_rows_are_planned_once_and_those_of_a_unit_stand_together():
    rows = [tuple(row.values()) for row in tables.planned()]
    assert len({*rows}) == len(rows)
    units = [(row[0], row[1], row[2], row[4]) for row in rows if not row[5]]
    assert len(list(itertools.groupby(units))) == len({*units})


def test_a_csv_of_other_columns_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match="has the columns"):
        tables.known(tmp_path / "rows.csv", tables.COLUMNS)


def test_the_page_is_that_of_the_csvs():
    rows, ngrams, published = tables.read()
    assert (tables.FOLDER / "tables.md").read_text() == page.text(rows, ngrams, published)
