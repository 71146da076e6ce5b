"""translate.py: what it prints, what it keeps, what it refuses."""

import json
import os
import sys

import numpy as np
import pytest

from corpus.binary import prepare
from tests.conftest import pairs
from translate import main
from translation.scores import score


@pytest.fixture
def trained(run, paired):
    """A few steps on pairs: it translates nothing yet."""
    return run("trained", f"--dataset={paired}", "--max_iters=10")[0]


def held_out(folder):
    """(sources, targets) of val.bin"""
    tokens = np.fromfile(folder / "val.bin", dtype=np.uint16)
    texts = "".join(chr(token) if token < 256 else "\n" for token in tokens).split("\n")
    return texts[:-1:2], texts[1::2]


def said(capsys, *arguments):
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def test_a_text(trained, capsys):
    text = said(capsys, trained, "--text=abc", "--max_new_tokens=9")
    kept = (trained / "translations.txt").read_text()
    assert kept == f"--- best.pt, greedy, text ---\n\nsource:      abc\ntranslation: {text}\n"
    other = said(capsys, trained, "--text=abc", "--max_new_tokens=9", "--beams=3", "--length_penalty=0.5")
    assert (
        f"--- best.pt, 3 beams, length_penalty 0.5, text ---\n\nsource:      abc\ntranslation: {other}"
        in (trained / "translations.txt").read_text()
    )


def test_a_full_disk_is_told_and_the_translation_is_printed(trained, capsys, monkeypatch):
    monkeypatch.setattr("host.disk.no_link", lambda path, flags: os.open("/dev/full", flags))
    with pytest.raises(SystemExit) as stop:
        main([str(trained), "--text=abc", "--max_new_tokens=9"])
    assert stop.value.code == 1
    printed = capsys.readouterr()
    assert printed.out
    assert "translations.txt could not be written (the disk" in printed.err


def test_a_file(trained, capsys, tmp_path):
    """Line n of the output translates line n, as --text does."""
    lines = ["aaa bbb", "c", "d\u2028d", "aaa ccc"]
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    out = said(capsys, trained, f"--input={tmp_path}/in.txt", "--max_new_tokens=9")
    assert out.removesuffix("\n").split("\n") == [
        said(capsys, trained, f"--text={line}", "--max_new_tokens=9").removesuffix("\n") for line in lines
    ]


@pytest.fixture
def perfect(monkeypatch):
    """A model that translates all but the first of its sources."""

    def right(loaded, sources, how, progress=None):
        assert progress == "translating"
        texts = ["".join(map(chr, source)).upper() for source in sources]
        return [[*text.encode()] for text in ["no", *texts[1:]]]

    monkeypatch.setattr("translate.translate", right)


def test_pairs(trained, paired, capsys, perfect, tmp_path):
    sources, targets = held_out(paired)
    json_file = tmp_path / "new" / "scores.json"
    out = said(capsys, trained, f"--pairs={paired}/val.bin", f"--json={json_file}")
    expected, _ = score(["no", *targets[1:]], targets)
    copy, _ = score(sources, targets)
    assert "| translation        | BLEU tok:13a | chrF2 | texts |" in out
    assert (
        f"| trained, greedy    | {expected.bleu:>12.2f} | {expected.chrf:.2f} | {len(targets):>5} |" in out
    )
    assert f"| copy of the source | {copy.bleu:>12.2f} | {copy.chrf:>5.2f} |" in out
    assert "BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in out
    found = json.loads(json_file.read_text())
    assert found["scores"]["trained, greedy"]["bleu"] == expected.bleu
    assert found["texts"] == len(targets)
    assert found["sources"]["recipe"] == {"made": "up"}
    assert found["model"]["parameters"] > 0
    assert {"commit", "torch", "settings", "signatures", "seconds", "new_tokens"} <= found.keys()
    kept = (trained / "translations.txt").read_text()
    assert f"\n\nsource:      {sources[0]}\ntranslation: no\nreference:   {targets[0]}\n" in kept
    assert kept.count("\nreference:   ") == len(targets)
    assert "exists already, and is not overwritten" in refused(
        capsys, trained, f"--pairs={paired}", f"--json={json_file}"
    )
    # a folder is its val.bin; files of the same texts give the same scores
    for name, texts in (("a.en", sources), ("a.fr", targets)):
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    files = (f"--input={tmp_path}/a.en", f"--references={tmp_path}/a.fr")
    for arguments in ((f"--pairs={paired}",), files):
        again = said(capsys, trained, *arguments)
        assert again.splitlines()[:4] == out.splitlines()[:4]
    limited = said(capsys, trained, f"--pairs={paired}", "--limit=3")
    assert f"{score(['no', *targets[1:3]], targets[:3])[0].bleu:.2f} " in limited


def test_bleu_is_of_the_target_language(trained, capsys, perfect, tmp_path, monkeypatch):
    (tmp_path / "a.en").write_text("no\naaa bbb\n")
    (tmp_path / "a.xx").write_text("打开文件。\nファイルを開きます。\n")
    files = (f"--input={tmp_path}/a.en", f"--references={tmp_path}/a.xx")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    assert "pip install 'sacrebleu[ja]==" in refused(capsys, trained, *files)
    assert "BLEU tok:char" in said(capsys, trained, *files, "--bleu_tokenizer=char")
    (tmp_path / "a.xx").write_text("打开文件。\n今天天气很好。\n")
    out = said(capsys, trained, *files)
    assert "| BLEU tok:zh |" in out
    assert "BLEU: nrefs:1|case:mixed|eff:no|tok:zh|" in out


def test_tokens_that_lose_parts_of_a_text_are_no_references(trained, paired, capsys, monkeypatch):
    monkeypatch.setattr("corpus.tokenizer.BytesTokenizer.exact", False)
    said = refused(capsys, trained, f"--pairs={paired}/val.bin")
    assert "loses parts of a text, so its tokens are no references" in said


def test_pairs_that_do_not_fit(run, paired, capsys):
    """Left out and counted, as in training; a pair that fills the block is there."""
    folder, _ = run("short", f"--dataset={paired}", "--max_iters=2", "--block_size=18", "--eval_tokens=180")
    sources, _ = held_out(paired)
    fitting = [source for source in sources if 2 * len(source) + 2 <= 18]
    assert 0 < len(fitting) < len(sources)
    assert any(2 * len(source) + 2 > 18 - 4 for source in fitting)
    main([str(folder), f"--pairs={paired}", "--max_new_tokens=1"])
    printed = capsys.readouterr()
    assert f"left out {len(sources) - len(fitting)} pairs longer than block_size=18" in printed.err
    assert f"{len(fitting)} |" in printed.out
    main([str(folder), f"--pairs={paired}", "--max_new_tokens=1", "--limit=2"])
    assert capsys.readouterr().out.splitlines()[2].replace(" ", "").endswith("|2|")


def test_what_it_refuses(trained, paired, dataset, run, capsys, tmp_path, monkeypatch):
    assert "none is given" in refused(capsys, trained)
    wrong = refused(
        capsys, trained, "--text=a", "--pairs=b", "--references=c", "--beams=2", "--top_p=0.5",
        "--json=a.txt", "--batch_size=0",
    )  # fmt: skip
    for message in (
        "not text and pairs", "references acts with input only", "leave out top_p or beams",
        "json must end in .json", "batch_size must be at least 1, not 0",
    ):  # fmt: skip
        assert message in wrong
    for arguments, message in [
        (("--text= ",), "--text is empty"),
        (("--input=",), "input is empty: name a file"),
        ((f"--pairs={paired}/meta.json",), "meta.json is no prepared data"),
        ((f"--pairs={paired}", f"--json={paired}/val.bin/a.json"), "there is no folder"),
        (("--text=a", "--limit=3"), "limit acts with pairs only"),
        (("--text=a", "--top_k=3"), "top_k acts with a temperature"),
        (("--text=a", "--length_penalty=2"), "length_penalty acts with beams only"),
        (("--text=a", "--json=a.json"), "json acts with pairs"),
        (("--text=a", "--bleu_tokenizer=zh"), "bleu_tokenizer acts with pairs"),
        (("--text=" + 31 * "a",), "may have 30, and the longest has 31"),
        ((f"--pairs={dataset}/val.bin",), "val.bin holds documents"),
        ((f"--pairs={tmp_path}/val.bin",), "meta.json"),
        (("--input=nowhere.txt",), "nowhere.txt"),
    ]:  # fmt: skip
        assert message in refused(capsys, trained, *arguments)
    (tmp_path / "a").write_text("one\n" + 40 * "x" + "\nthree\n" + 50 * "x")
    (tmp_path / "b").write_text("un\n\ntrois\n")
    files = (f"--input={tmp_path}/a", f"--references={tmp_path}/b")
    assert "lines 2, 4 are too long" in refused(capsys, trained, files[0])
    assert "not aligned: line 4 is in" in refused(capsys, trained, *files)
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    assert f"{tmp_path}/b: line 2 is empty" in refused(capsys, trained, *files)
    (tmp_path / "a").write_text("")
    assert f"{tmp_path}/a is empty" in refused(capsys, trained, files[0])
    (tmp_path / "a").write_bytes(b"one\n\xff")
    assert "line 2: not UTF-8" in refused(capsys, trained, files[0])
    untrained, _ = run("documents", "--max_iters=2")
    assert "which holds documents, not pairs" in refused(capsys, untrained, "--text=a")
    other = tmp_path / "other"
    prepare(pairs, {"made": "up"}, "bpe:300", other, 0.2, workers=1, pairs=True)
    assert "was trained with another vocabulary" in refused(capsys, trained, f"--pairs={other}")
    tokens = np.fromfile(paired / "val.bin", dtype=np.uint16)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in paired.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    tokens[3] = 98
    tokens.tofile(damaged / "val.bin")
    assert "val.bin" in refused(capsys, trained, f"--pairs={damaged}")
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    assert "pip install sacrebleu==" in refused(capsys, trained, f"--pairs={paired}")


def test_interrupted(trained, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("translate.translate", interrupted)
    assert "interrupted; nothing was written" in refused(capsys, trained, "--text=a")
    assert not (trained / "translations.txt").exists()
