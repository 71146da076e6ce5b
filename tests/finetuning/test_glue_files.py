"""GLUE's data: its public files, the hub, and what is refused with which words."""

from types import SimpleNamespace

import pytest

from corpus import DataError
from corpus import hub as hub_module
from finetuning.glue import MSR, read_folder, read_hub
from finetuning.tasks import PUBLISHED, TASKS
from tests.finetuning.glue_files import HEADERS, write_task, write_tsv

every_task = pytest.mark.parametrize("name", TASKS)
SST2, COLA, MRPC = TASKS["sst2"], TASKS["cola"], TASKS["mrpc"]


def plain(examples):
    return [(example.texts, example.label) for example in examples]


@every_task
def test_reads_the_public_columns(tmp_path, name):
    task = TASKS[name]
    held = write_task(tmp_path, task.title)
    data = read_folder(task, tmp_path)
    assert plain(data.train) == held["train.tsv"]
    assert {e.label for e in data.train} == set(range(len(task.labels)))
    assert list(data.validation) == (["matched", "mismatched"] if name == "mnli" else ["dev"])
    for set_name, file, _ in task.validation:
        assert plain(data.validation[set_name]) == held[file]
    assert data.left_out == 0


def test_the_eight_tasks_of_the_paper():
    assert [task.title for task in TASKS.values()] == ["MNLI", *HEADERS]
    assert all(len(results) == len(TASKS) for results in PUBLISHED.values())
    assert [name for name, task in TASKS.items() if task.epochs == 10] == ["cola", "mrpc", "rte", "wnli"]


def test_characters_of_the_texts(tmp_path):
    """Quotation marks do not quote, characters that end lines elsewhere do not, \\r\\n and a mark do."""
    text = 'he said "no\x85\u2028 and "left'
    (tmp_path / "SST-2").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        content = f"\ufeffsentence\tlabel\r\n{text}\t1\r\n\r\n"
        (tmp_path / "SST-2" / file).write_text(content, encoding="utf-8", newline="")
    data = read_folder(SST2, tmp_path)
    assert plain(data.train) == plain(data.validation["dev"]) == [((text,), 1)]


def test_columns_are_found_by_name(tmp_path):
    for file in ("train.tsv", "dev.tsv"):
        write_tsv(tmp_path / "SST-2" / file, ["label", "note", "sentence"], [["1", "", "fine"]])
    assert plain(read_folder(SST2, tmp_path).train) == [(("fine",), 1)]


def test_mrpc_as_its_owner_gives_it_out(tmp_path):
    held = write_task(tmp_path, "MRPC")
    folder = tmp_path / "MRPC"
    (folder / "train.tsv").rename(folder / MSR)
    (folder / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"lacks .*dev_ids.tsv beside it"):
        read_folder(MRPC, tmp_path)
    (folder / "dev_ids.tsv").write_text("705\t905\n700\t900\n1\t2\n")
    data = read_folder(MRPC, tmp_path)
    assert plain(data.validation["dev"]) == [held["train.tsv"][0], held["train.tsv"][5]]
    assert len(data.train) == 22
    (folder / "dev_ids.tsv").write_text("1\t2\n")
    with pytest.raises(DataError, match="lists none of the pairs"):
        read_folder(MRPC, tmp_path)
    (folder / "dev_ids.tsv").write_text("1\t2\n705 905\n")
    with pytest.raises(DataError, match=r"dev_ids.tsv, line 2: 1 fields"):
        read_folder(MRPC, tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "train.tsv: is empty"),
        ("\n\n", "train.tsv: is empty"),
        ("sentence\tlabel\n", "train.tsv: holds names of columns"),
        (
            "sentence\tscore\nfine\t1\n",
            "line 1: lacks the column 'label' (it has 'sentence', 'score')",
        ),
        ("fine\t1\nbad\t0\n", "train.tsv, line 1: lacks the column 'sentence' and 'label'"),
        ("sentence\tlabel\nfine\t1\nbad\n", "train.tsv, line 3: 1 fields"),
        ("sentence\tlabel\nfine\tgood\t1\n", "train.tsv, line 2: 3 fields"),
        ("sentence\tlabel\nfine\t1\n\nbad\t0\n", "train.tsv, line 3: 1 fields"),
        ("sentence\tlabel\nfine\t2\n", "train.tsv, line 2: label '2'"),
        ("sentence\tlabel\nfine\t\n", "train.tsv, line 2: label ''"),
        ("sentence\tlabel\n \t1\n", "train.tsv, line 2: there is no text"),
        (b"sentence\tlabel\nfine\t1\n\xff\t1\n", "train.tsv, line 3: is not UTF-8"),
        (None, "train.tsv: No such file or directory"),
    ],
)
def test_refuses_with_file_and_line(tmp_path, content, said):
    write_task(tmp_path, "SST-2")
    path = tmp_path / "SST-2" / "train.tsv"
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as error:
        read_folder(SST2, tmp_path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_header_in_a_file_that_has_none(tmp_path):
    write_task(tmp_path, "CoLA")
    path = tmp_path / "CoLA" / "dev.tsv"
    path.write_text("source\tlabel\tmark\tsentence\n" + path.read_text())
    with pytest.raises(DataError, match=r"dev\.tsv, line 1: label 'label'"):
        read_folder(COLA, tmp_path)


def test_so_many_malformed_rows_may_be_left_out(tmp_path):
    """The public file of QQP has rows that a tab or a line break in a question has cut."""
    held = write_task(tmp_path, "SST-2")["train.tsv"]
    path = tmp_path / "SST-2" / "train.tsv"
    path.write_text(path.read_text() + "cut\nlate\t1\tx\nfine\t1\n")
    data = read_folder(SST2, tmp_path, max_bad_rows=2)
    assert plain(data.train) == [*held, (("fine",), 1)]
    assert data.left_out == 2
    with pytest.raises(DataError, match=r"line 27: .* 1 rows before it; --max_bad_rows"):
        read_folder(SST2, tmp_path, max_bad_rows=1)
    path.write_text("sentence\tlabel\ncut\n")
    with pytest.raises(DataError, match=r"no row is sound.*line 2"):
        read_folder(SST2, tmp_path, max_bad_rows=5)


def test_one_empty_question_of_two(tmp_path):
    write_task(tmp_path, "QQP")
    write_tsv(tmp_path / "QQP" / "dev.tsv", HEADERS["QQP"], [["1", "2", "3", "why", "", "0"]])
    assert plain(read_folder(TASKS["qqp"], tmp_path).validation["dev"]) == [(("why", ""), 0)]


def test_the_fingerprint_is_of_every_example(tmp_path):
    write_task(tmp_path, "SST-2")
    before = read_folder(SST2, tmp_path).fingerprint()
    assert before == read_folder(SST2, tmp_path).fingerprint()
    path = tmp_path / "SST-2" / "dev.tsv"
    path.write_text(path.read_text().replace("\t1\n", "\t0\n", 1))
    assert before != read_folder(SST2, tmp_path).fingerprint()


# --- the hub ---


@pytest.fixture
def served(monkeypatch):
    """served[configuration, split] = rows or an exception: what load_dataset finds."""
    rows = {}

    def load_dataset(path, name, split):
        assert path == "nyu-mll/glue"
        found = rows[name, split]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(hub_module, "library", lambda: SimpleNamespace(load_dataset=load_dataset))
    return rows


@every_task
def test_the_hub_and_the_files_give_the_same(tmp_path, served, name):
    task = TASKS[name]
    held = write_task(tmp_path, task.title)
    for file, split in (("train.tsv", "train"), *((file, split) for _, file, split in task.validation)):
        served[name, split] = [
            {**dict(zip(task.hub_columns, texts, strict=True)), "label": label, "idx": number}
            for number, (texts, label) in enumerate(held[file])
        ]
    assert read_hub(task) == read_folder(task, tmp_path)
    assert read_hub(task).fingerprint() == read_folder(task, tmp_path).fingerprint()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            ConnectionError("no\nroute"),
            r"\(sst2, train\).*ConnectionError: no route.*--data_dir",
        ),
        ([], "has no rows"),
        ([{"text": "fine", "label": 1}], r"row 1: .*'sentence'.*text, label"),
        (
            [{"sentence": "fine", "label": 1}, {"sentence": "bad", "label": -1}],
            "row 2: label -1",
        ),
        ([{"sentence": None, "label": 1}], "row 1: a text is missing"),
    ],
)
def test_refuses_what_the_hub_gives(served, rows, said):
    served["sst2", "train"] = rows
    with pytest.raises(DataError, match=said):
        read_hub(SST2)


@pytest.mark.parametrize("character", ["\0", "\x01", "\x1b"])
def test_control_characters_are_damage(tmp_path, character):
    write_task(tmp_path, "QQP")
    path = tmp_path / "QQP" / "dev.tsv"
    rows = [["1", "2", "3", "why", "how", "0"], ["2", "3", "4", "fine", f"bro{character}ken", "1"]]
    write_tsv(path, HEADERS["QQP"], rows)
    with pytest.raises(DataError, match=rf"dev\.tsv, line 3: .*{ord(character):#04x}"):
        read_folder(TASKS["qqp"], tmp_path)
    data = read_folder(TASKS["qqp"], tmp_path, max_bad_rows=1)
    assert plain(data.validation["dev"]) == [(("why", "how"), 0)]
    assert data.left_out == 1


@pytest.mark.parametrize(("title", "task"), [("CoLA", COLA), ("MRPC", MRPC)])
def test_a_text_that_the_end_of_the_file_cuts_off(tmp_path, title, task):
    """Where the text stands last in its row, what is left of it looks like any text."""
    held = write_task(tmp_path, title)["train.tsv"]
    path = tmp_path / title / "train.tsv"
    lines = path.read_text().splitlines()
    path.write_text(path.read_text()[:-2])
    with pytest.raises(DataError, match=rf"train\.tsv, line {len(lines)}: the file ends"):
        read_folder(task, tmp_path)
    assert plain(read_folder(task, tmp_path, max_bad_rows=1).train) == held[:-1]


def test_a_label_that_the_end_of_the_file_cuts_off(tmp_path):
    held = write_task(tmp_path, "RTE")["train.tsv"]
    path = tmp_path / "RTE" / "train.tsv"
    path.write_text(path.read_text()[:-1])
    assert plain(read_folder(TASKS["rte"], tmp_path).train) == held
    path.write_text(path.read_text()[:-1])
    with pytest.raises(DataError, match=r"label 'not_entailmen'"):
        read_folder(TASKS["rte"], tmp_path)
