"""Tasks that fail, die or take too long cost their own results and no others; lines survive a kill."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks.lines import Lines, LinesError, read
from benchmarks.session import Session, Task

CPU = torch.device("cpu")
FACTS = {"device": "a CPU", "python": "3", "torch": "2", "triton": None, "sizes": "tiny", "commit": "abc"}


def made(folder, broken=False):
    """Functions that leave their process's number in `folder`."""
    if broken:
        raise ValueError("nothing to measure")

    def result(name, found):
        (folder / name).write_text(str(os.getpid()))
        return found

    def fails():
        raise RuntimeError("a bad kernel")

    def turns():
        for number in range(3):
            with open(folder / "turns", "a") as file:
                file.write(f"{os.getpid()}\n")
            if number < 2:
                yield
        return {"seconds": 1.5}

    return {
        "turns": turns,
        "one": lambda: result("one", {"seconds": 1.5}),
        "fails": fails,
        "dies": lambda: os._exit(3),
        "wrong": lambda: result("wrong", {"distances": {"triton": 0.5}, "wrong": {"triton": "0.5 away"}}),
        "slow": lambda: (folder / "begun").touch() or result("slow", time.sleep(60)),
        "last": lambda: result("last", {"seconds": 2.5}),
    }


def task(folder, *items, name="task", **keys):
    return Task("stage", name, list(items), made, (folder, *keys.values()), {"dtype": "float32"})


@pytest.fixture
def lines(tmp_path):
    with Lines(tmp_path / "a.jsonl", FACTS) as opened:
        yield opened


def session(lines):
    said = []
    made = Session(lines, CPU, 1, 1.0, said.append)
    made.said = said
    return made


def test_what_fails_does_not_stop_the_others(lines, tmp_path):
    one = session(lines)
    items = ("one", "fails", "dies", "wrong", "last", "unknown")
    one.run([task(tmp_path, *items), task(tmp_path, "one", name="second", broken=True)], slots=2)
    found = {(line["task"], line["item"]): line for line in read(lines.path)}
    assert found["task", "one"]["seconds"] == 1.5
    assert found["task", "last"]["seconds"] == 2.5
    assert found["task", "one"]["settings"] == {"dtype": "float32"}
    assert FACTS.items() <= found["task", "one"].items()
    assert "RuntimeError: a bad kernel" in found["task", "fails"]["error"]
    assert "exit code 3" in found["task", "dies"]["error"]
    assert "KeyError" in found["task", "unknown"]["error"]
    assert "ValueError: nothing to measure" in found["second", "one"]["error"]
    assert len({(tmp_path / item).read_text() for item in ("one", "wrong", "last")}) == 3
    assert sum("FAILED" in text for text in one.said) == 4
    again = session(lines)
    again.run([task(tmp_path, *items)])
    assert again.said == []
    assert again.done([task(tmp_path, *items)])
    assert not again.done([task(tmp_path, "slow")])


def test_what_another_task_refused_is_not_timed(lines, tmp_path):
    lines.add("compile", "both", "compile", {"refused": {"one": "wrong logits"}})
    timed = task(tmp_path, "one", "last")
    timed.after = ("compile", "both", "compile")
    session(lines).run([timed])
    found = {line["item"]: line for line in read(lines.path)}
    assert found["one"]["error"] == "wrong logits"
    assert found["last"]["seconds"] == 2.5
    assert not (tmp_path / "one").exists()


def test_tasks_in_turns(lines, tmp_path):
    """Also when one of them fails."""
    one = session(lines)
    tasks = [task(tmp_path, "turns", "fails", "last", name=name) for name in ("a", "b")]
    one.run([*tasks, task(tmp_path, "turns", name="c", broken=True)], slots=0)
    calls = (tmp_path / "turns").read_text().split()
    assert calls == 3 * calls[:2]  # the two processes, one after the other
    assert calls[0] != calls[1]
    found = {(line["task"], line["item"]): line for line in read(lines.path)}
    assert found["a", "turns"]["seconds"] == found["b", "last"]["seconds"] - 1 == 1.5
    assert "a bad kernel" in found["b", "fails"]["error"]
    assert "nothing to measure" in found["c", "turns"]["error"]
    assert list(found)[:3] == [("c", "turns"), ("a", "turns"), ("b", "turns")]


def test_the_time_is_kept_and_only_what_needs_all_of_it_is_given_up(lines, tmp_path, monkeypatch):
    """A minute, of which "one" takes a fifth; it is over as soon as "slow" has begun."""
    begun, second = tmp_path / "begun", ("stage", "second", "one")

    def clock():
        return 1e6 if begun.exists() else 12.0 * (second in lines.results)

    monkeypatch.setattr("benchmarks.session.time", SimpleNamespace(monotonic=clock))
    session(lines).run([task(tmp_path, "slow", "last"), task(tmp_path, "one", name="later")])
    (line,) = read(lines.path)
    assert (line["item"], line["error"].partition(":")[2]) == ("slow", " give more --minutes")
    begun.unlink()
    late = session(lines)
    late.start -= 7
    late.run([task(tmp_path, "slow", name="late")])
    begun.unlink()
    compiles = task(tmp_path, "slow", name="compiles")
    compiles.stage = "compile"
    session(lines).run([compiles])
    begun.unlink()
    session(lines).run([task(tmp_path, "one", "slow", name="second")])
    kept = read(lines.path)
    assert len(kept) == 2  # the next call has more time for the others
    assert kept[-1]["item"] == "one"
    assert not (tmp_path / "slow").exists()


def test_lines_of_a_killed_process(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    with Lines(path, FACTS) as first:
        first.add("s", "t", "1", {"seconds": 1})
        assert json.loads(path.read_text())["seconds"] == 1  # at once
        with pytest.raises(LinesError, match="another process is writing"):
            Lines(path, FACTS)
    before = path.read_text()
    path.write_text(before + '{"stage": "s", "ta')
    with Lines(path, FACTS) as second:
        assert list(second.results) == [("s", "t", "1")]
        second.add("s", "t", "2", {"seconds": 2})
        second.add("s", "t", "1", {"seconds": 3})
    assert path.read_text().startswith(before)
    assert [(line["item"], line["seconds"]) for line in read(path)] == [("1", 3), ("2", 2)]


def test_lines_that_cannot_be_used(tmp_path):
    path = tmp_path / "a.jsonl"
    with Lines(path, FACTS) as first:
        first.add("s", "t", "1", {})
    with pytest.raises(LinesError, match=r"device=a CPU.*device=H200"):
        Lines(path, FACTS | {"device": "H200"})
    with Lines(path, FACTS | {"commit": "other"}) as mended:  # what was mended on the way stays comparable
        assert len(mended.results) > 0
    with Lines(path, FACTS) as second:
        second.add("stage", "task", "one", {"settings": {"dtype": "bfloat16", "sizes": [1]}})
        same = task(tmp_path, "one")
        same.settings = {"dtype": "bfloat16", "sizes": (1,)}
        second.check(same)
        with pytest.raises(LinesError, match=r"task, one .*dtype=bfloat16.*dtype=float32"):
            second.check(task(tmp_path, "one"))
    path.write_text("a,b\n1,2\n")
    with pytest.raises(LinesError, match="line 2: no result"):
        Lines(path, FACTS)
    with pytest.raises(LinesError, match=r"cannot be read: No such file"):
        read(tmp_path / "no.jsonl")
    with pytest.raises(LinesError, match="cannot be written"):
        Lines(path / "below.jsonl", FACTS)
