"""The pages under results/ say what their CSVs say, and name files and commands that exist."""

import csv
import re
import shlex
import statistics
from pathlib import Path

import pytest

import configurator
from results.trainability import run as study
from results.trainability import studies

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results/trainability"
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results").rglob("*.md"))
# the page that shows the table of a CSV, where it has another name
TABLES = dict.fromkeys(("poles", "rescues", "skip"), "skip") | {
    "papers": "paper",
    "parity": "paper",
    "depths": "depths_and_rates",
}
TABLES |= {
    name: name
    for name in ("claim", "claim_3000", "claim_1024", "claim_10m", "key_shift", "baselines", "units")
}
TABLES |= {name: name for name in ("modules", "longer", "paper")}
# studies of a form that has left the code before studies.GONE was begun; skip.md names its commit
LEFT = dict.fromkeys(("poles", "rescues", "skip"), 600)


def tables(text):
    """The tables of a page, each as rows of cells, the head first."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.lstrip().startswith("|"):
            rows.append([cell.strip() for cell in line.split("|")[1:-1]])
        elif rows:
            head, _, *rows = rows
            found.append([head, *rows])
            rows = []
    return found


def cells(text):
    """{arm: {column: cell}} of the tables of arms."""
    return {
        row[0]: dict(zip(head, row, strict=True))
        for head, *rows in tables(text)
        if head[0] == "arm" and "validation loss" in head
        for row in rows
    }


def section(page, name):
    """The one section of a page that names a CSV."""
    text = (FOLDER / f"{page}.md").read_text()
    (found,) = (part for part in re.split(r"\n##+ ", text) if f"`{name}.csv`" in part)
    return found


def rows_of(name):
    return study.joined(FOLDER / f"{name}.csv", (studies.STEPS | LEFT)[name])


def made_of(rows, names=None):
    """{arm: {column: cell}} that the study makes of the runs."""
    names = names or list(dict.fromkeys(row["arm"] for row in rows))
    return cells(study.table_of([study.Arm(arm, study.runs_of(arm, rows)) for arm in names]))


@pytest.mark.parametrize("name", TABLES)
def test_the_page_says_what_the_runs_say(name):
    told, here = cells(section(TABLES[name], name)), made_of(rows_of(name))
    assert here.keys() == told.keys()
    # gradient norms of some studies are from logs, which have more of them than the CSV
    of_logs = ("gradient", "95", "largest", "spikes", "clamped")
    for arm, row in here.items():
        for column in study.COLUMNS:
            if not column.startswith(of_logs):
                assert row.get(column, "") == told[arm].get(column, ""), (arm, column)


def test_every_csv_has_a_page():
    assert {path.stem for path in FOLDER.glob("*.csv")} - TABLES.keys() == {"rates", "claim_rates"}


def test_the_rates_are_those_of_the_runs():
    arms = {"dense": "dense+rope", "F": "cffn_glu_rope", "A": "cattn_m_shared"}
    arms["full"] = "full_content+layers_6+depth_1"
    found = {}
    for name, rate in (("claim_rates", ""), ("claim", "8e-3"), ("longer", "4e-3")):
        for row in rows_of(name):
            model, _, own = row["arm"].partition("_learning_rate=")
            if row["seed"] == 1:
                at = found.setdefault((model, own.partition("_")[0] or rate), {})
                at[row["step"]] = f"{row['validation_loss']:.4f}"
    ((head, *rows),) = (t for t in tables((FOLDER / "claim.md").read_text()) if t[0][0] == "seed 1")
    for model, *losses in rows:
        for rate, loss in zip(head[1:], losses, strict=True):
            if loss and (model, rate) != ("dense", "5.6e-3"):  # that run is in no CSV
                assert found[arms[model], rate][1500] == loss, (model, rate)


def test_the_answers_are_those_of_the_runs():
    """The table of README.md has the models of the claim in its order, under names of its own."""
    ((head, *rows),) = (t for t in tables((FOLDER / "README.md").read_text()) if "seeds" in t[0])
    made = made_of(rows_of("claim"))
    assert len(rows) == len(made)
    for row, arm in zip(rows, made.values(), strict=True):
        for column, cell in zip(head, row, strict=True):
            if column in study.COLUMNS:
                assert cell == arm.get(column, ""), (row[0], column)


def test_the_first_page_of_a_study_says_what_the_runs_say():
    """Its tables name the models in words, so a row is found by its loss."""
    made = made_of(rows_of("baselines")) | made_of(rows_of("claim")) | made_of(rows_of("papers"))
    by_loss = {arm["validation loss"]: arm for arm in made.values()}
    dense = int(made["dense+rope"]["without embeddings"].replace(",", ""))
    shown = 0
    for head, *rows in tables((FOLDER / "README.md").read_text()):
        for row in rows if {"validation loss", "difference"} <= {*head} else ():
            named = dict(zip(head, row, strict=True))
            arm = by_loss.get(named["validation loss"])
            assert arm, f"no run has the loss of {row}"
            shown += 1
            for column in ("without embeddings", "seeds", "difference", "p"):
                assert named.get(column, arm.get(column, "")) == arm.get(column, ""), (row[0], column)
            count = int(arm["without embeddings"].replace(",", ""))
            assert float(named.get("share", round(count / dense, 2))) == round(count / dense, 2), row[0]
    assert shown, "the page has no table of the study"


# the rows of the two tables of multipliers, and their families
OURS = "study-dense+study-full_content+study-layers_6+study-depth_1"
COLLAPSED = "study-dense+study-cattn_m_collapsed+study-strict"
FAMILIES = {
    "the papers' F": "study-dense+study-cffn_gated+study-recipe",
    "the papers' A": f"{COLLAPSED}+study-recipe",
    "the papers' full model": f"{COLLAPSED}+study-cffn_gated+study-recipe",
    "the papers' F with RoPE": "study-dense+study-rope+study-cffn_gated+study-recipe",
    "a Transformer with RoPE": "study-dense+study-rope",
    "ours": OURS,
    "ours with learned constants": f"{OURS}+study-constant",
}


@pytest.mark.parametrize("page", ["README.md", "results/scaling/README.md"])
def test_multipliers_are_those_of_the_scaling_study(page):
    """In the columns of learned positions and of RoPE, with the intervals where a page has them."""
    with (ROOT / "results/scaling/joined/multipliers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["amount"] == "parameters" and row["value"]]
    (table,) = (t for t in tables((ROOT / page).read_text()) if "claim" in t[0][1])
    checked = set()
    for label, _, *columns in table[1:]:
        name = "ours with learned constants" if "constants" in label else label.split(":")[0]
        if name not in FAMILIES:
            continue  # a hybrid, of another study
        for baseline, cell in zip(("study-dense", "study-dense+study-rope"), columns[:2], strict=True):
            of = [r for r in rows if (r["baseline"], r["family"]) == (baseline, FAMILIES[name])]
            shown = [[f"{float(r[c]):.2f}" for c in ("value", "low", "high")] for r in of]
            for value, low, high in re.findall(r"(\d\.\d\d)(?! million)(?: \((\S+) to (\S+)\))?", cell):
                assert [value, low, high] in shown or (not low and value in [s[0] for s in shown]), label
                checked.add((name, baseline))
    assert len(checked) == 2 * len(FAMILIES) - 1  # the Transformer with RoPE is a baseline itself


def deviations(*names):
    """{arm: standard deviation of the last losses} of all arms with three seeds and more."""
    last = {}
    for row in (row for name in names for row in rows_of(name)):
        last.setdefault(row["arm"], {})[row["seed"]] = row["validation_loss"]  # of the last step
    return {arm: statistics.stdev(losses.values()) for arm, losses in last.items() if len(losses) > 2}


def test_the_noise_over_seeds_is_that_of_the_runs():
    text = " ".join((FOLDER / "README.md").read_text().split())
    early, clamp = deviations("modules", "paper"), "cf_pole=clamp"
    small = sorted(value for arm, value in early.items() if clamp not in arm)
    late = deviations("claim", "claim_1024", "papers", "units", "baselines").values()
    assert (
        f"is {small[0]:.3f} to {small[-3]:.2f} at 600 steps without a clamp ({small[-2]:.3f} for the "
        f"papers' full model, {small[-1]:.2f} for CAttnU without fractions; with the clamp up to "
        f"{max(early.values()):.1f}) and {min(late):.3f} to {max(late):.3f} at 1,500 steps (up to "
        f"{max(deviations('claim_10m').values()):.3f} at ten million parameters)"
    ) in text


def test_the_page_of_the_gpu_says_what_its_tables_say():
    (page, measured) = ((ROOT / f"results/gpu/{name}.md").read_text() for name in ("README", "h200"))
    text, rows = " ".join(page.split()), [row for table in tables(measured) for row in table]
    shares = [float(row[4].split()[0]) for row in rows if row[0].startswith("continuants, triton")]
    assert f"reach {min(shares):.0f} to {max(shares):.0f} % of a copy's bandwidth" in text
    (decoding,) = (table for table in tables(measured) if "step us" in table[0])
    us = {row[0]: row[3] for row in decoding}
    assert f"takes {us['CoFrGeNet_B']} us a token, and {us['CoFrGeNet']} with continuants" in text
    steps = [table for table in tables(measured) if "MFU" in table[0]]
    of_a = [dict(zip(step[0], row, strict=True)) for step in steps for row in step if "CoFrGeNet-A" in row]
    _, small, _, xl = (row["speed-up"] for row in of_a)  # as a CUDA graph: every other table
    assert small == "1.00"
    assert f"at GPT2-xl's size only** ({xl})" in text


def test_keys_of_the_previous_token_gain_what_the_runs_say():
    gains = {}
    for name in ("key_shift", "claim_3000"):
        last = {(row["arm"], row["seed"]): row["validation_loss"] for row in rows_of(name)}
        for (arm, seed), loss in last.items():
            if (shifted := last.get((f"{arm}+key_shift", seed))) is not None:
                gains.setdefault(arm, []).append(loss - shifted)
    ours, dense = gains["full_content+layers_6+depth_1"], gains["dense+rope"]
    text = " ".join((FOLDER / "README.md").read_text().split())
    assert (
        f"worth {min(ours):.2f} to {max(ours):.2f} to the full model and {min(dense):.2f} to "
        f"{max(dense):.2f} to dense"
    ) in text


@pytest.mark.parametrize("name", [*(name for name in TABLES if name not in LEFT), "rates", "claim_rates"])
def test_csvs_name_their_arms_as_the_study_does(name):
    """All but those whose code has left, which the CSV must have."""
    with (FOLDER / f"{name}.csv").open() as file:
        arms = {row["arm"] for row in csv.DictReader(file)}
    runs, _, _ = study.planned(study.StudyConfig(name), studies.STEPS[name])
    planned, gone = {study.key_of(run, name)[0] for run in runs}, {*studies.GONE.get(name, ())}
    assert gone <= arms <= planned | gone
    assert not planned & gone


def missing(page):
    """Links and names of files on a page that lead nowhere."""
    text = page.read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    named = re.findall(r"`([\w./-]+\.(?:py|md|csv|png|json|jsonl|sh|txt|toml))`", text)
    wrong = [link for link in links if link and "://" not in link and not (page.parent / link).exists()]
    return wrong + [n for n in named if not ((page.parent / n).exists() or (ROOT / n).exists())]


@pytest.mark.parametrize("name", PAGES)
def test_links_and_files_exist(name):
    assert not missing(ROOT / name)


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md) [b](page.md#part) [c](https://example.org/x.md) `train.py` `no/file.csv`")
    assert missing(page) == ["gone.md", "no/file.csv"]


def commands(name):
    """The arguments of every call of the study's script on a page."""
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / name).read_text())
    found = re.findall(r"python results/trainability/run\.py ([^`\n]+)", text)
    return [shlex.split(call, comments=True) for call in found]


CALLS = {" ".join(call): call for name in PAGES for call in commands(name)}


def test_the_pages_have_the_command_of_every_study():
    assert {call[0] for call in CALLS.values()} == studies.STUDIES.keys()


@pytest.mark.parametrize("call", CALLS)
def test_the_commands_on_the_pages_can_be_planned(call, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = configurator.parse(study.StudyConfig, CALLS[call], positional="study", files=False)
    runs, _, _ = study.planned(config, studies.STEPS[config.study])
    assert study.chosen(runs, config)
    if config.joined:
        rows = study.joined(config.joined, studies.STEPS[config.study])
        study.refuse_others(rows, runs, config)
