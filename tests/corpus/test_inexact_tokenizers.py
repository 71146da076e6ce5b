"""Any tokenizer.json: what is encoded and decoded, which token ends a text, what bits per byte counts."""

import itertools
import json
import math
import pickle
import unicodedata

import numpy as np
import pytest

import evaluate
import export
import sample
from corpus import DataError, binary, mixture
from corpus.file_tokenizer import BpeTokenizer, InexactTokenizer, from_text
from corpus.loader import Dataset
from corpus.lossless import HARD_TEXTS
from corpus.splits import in_validation
from corpus.tokenizer_registry import build_tokenizer, from_json
from tests.corpus.foreign_tokenizers import BLANK, KINDS, SENTENCES, tokenizer_json
from tests.data.prepare_scripts import load_script

INEXACT = [kind for kind in KINDS if kind != "byte_level"]
# what comes back of "The  naïve 数 café ½" : a prefix is dropped, blanks are one, a letter is unknown
BACK = {
    "byte_level": "The  naïve 数 café ½",
    "llama": "The  naïve 数 café ½",
    "unigram": "The  naïve <unk> café <unk>2",
    "wordpiece": "the naive [UNK] cafe [UNK]",
}
KEYS = ["--block_size=16", "--batch_size=2", "--eval_tokens=64", "--max_iters=2"]


@pytest.fixture
def files(tmp_path):
    """files(kind) -> the path of its tokenizer.json"""

    def write(kind):
        path = tmp_path / kind / "tokenizer.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(tokenizer_json(kind))
        return path

    return write


@pytest.fixture
def prepared(files, tmp_path):
    """prepared(kind) -> the folder of a data set of 60 documents, and these"""
    script = load_script("text")
    names = itertools.product("fraction", repeat=2)
    documents = [
        f"{a}{b}: {SENTENCES[i % 2]} \t数 {'é' * (i % 7)}"
        for i, (a, b) in zip(range(60), names, strict=False)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))

    def prepare(kind, **keys):
        keys = {"val_fraction": 0.3, "workers": 1, "end_token": KINDS[kind], **keys}
        out = tmp_path / f"{kind}_set"
        texts = str(tmp_path / "texts.jsonl")
        script.main(script.PrepareConfig(input=texts, out=str(out), tokenizer=str(files(kind)), **keys))
        return out, documents

    return prepare


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_library(files, kind):
    import tokenizers

    tokenizer = build_tokenizer(str(files(kind)), None, KINDS[kind])
    library = tokenizers.Tokenizer.from_file(str(files(kind)))
    assert tokenizer.exact is (kind == "byte_level")
    text = "The  naïve 数 café ½"
    ids = tokenizer.encode(text)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode([tokenizer.end_of_text, *ids, tokenizer.end_of_text]) == BACK[kind]
    assert tokenizer.end_of_text == library.token_to_id(KINDS[kind])
    assert tokenizer.vocab_size == library.get_vocab_size()
    for rebuilt in (
        from_json(json.loads(json.dumps(tokenizer.to_json()))),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert (rebuilt.kind, rebuilt.hash, rebuilt.end_token) == (
            tokenizer.kind,
            tokenizer.hash,
            KINDS[kind],
        )
        assert rebuilt.encode_batch(SENTENCES) == tokenizer.encode_batch(SENTENCES)
    # no text ends a text
    for spelled in (KINDS[kind], f"a{KINDS[kind]}b", KINDS[kind].upper(), KINDS[kind].lower()):
        assert tokenizer.end_of_text not in tokenizer.encode(spelled)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["and 数数 fractions", "数" * 12 + "é数数 数", " a b", "é", ""])
def test_a_continuation_is_spelled_as_in_the_whole_text(files, kind, text):
    tokenizer = build_tokenizer(str(files(kind)), None, KINDS[kind])
    ids = tokenizer.encode(text) * 3
    for start in ("Fellow citizens: the", "the 数数数数数"):
        prompt = [tokenizer.end_of_text, *tokenizer.encode(start)]
        pieces = list(tokenizer.continued(prompt, ids))
        assert "".join(pieces) == tokenizer.decode(prompt + ids)[len(tokenizer.decode(prompt)) :]
        assert "\ufffd" not in "".join(pieces)
        assert len(pieces) <= len(ids) + 1


def test_bytes_without_a_character_are_written_too(files):
    tokenizer = build_tokenizer(str(files("llama")), None, "</s>")
    half = [tokenizer.library.token_to_id("<0xE6>")]
    assert "".join(tokenizer.continued([], half * 20)).count("\ufffd") == 20


def walked(text, pieces, letters):
    """The bytes of each token, by a walk over the text.

    pieces: the letters of each token. letters(character): what the normalizer makes of it. The space that
    is put before a text belongs to its first character.
    """
    made = [(letter, place) for place, c in enumerate(text, 1) for letter in letters(c)]
    if letters is not of_bert:
        made.insert(0, (BLANK, 1))
    ends = []
    for piece in pieces:
        for letter in piece:
            assert letter == made[0][0]
            _, end = made.pop(0)
        ends.append(end)
    assert made == []
    behind = [*(len(text[:end].encode()) for end in ends[:-1]), len(text.encode())]
    return [end - begin for begin, end in itertools.pairwise([0, *behind])]


def of_llama(character):
    if character in "ï数":  # they are no tokens
        return [f"<0x{byte:02X}>" for byte in character.encode()]
    return character.replace(" ", BLANK)


def of_nfkc(character):
    return unicodedata.normalize("NFKC", character).replace(" ", BLANK)


def of_bert(character):
    plain = unicodedata.normalize("NFD", character).lower()
    return [c for c in plain if not c.isspace() and unicodedata.category(c) not in ("Mn", "Cc")]


@pytest.mark.parametrize(
    ("kind", "text", "letters"),
    [
        ("llama", " The  naïve 数 fraction ", of_llama),
        ("unigram", "The ﬁne ａnd naïve ﬀ café", of_nfkc),  # one character may have two letters
        ("wordpiece", "\x01  The NAÏVE cafe\u0301, a\x02 fraction \u0301", of_bert),
    ],
)
def test_the_bytes_of_each_token_are_those_of_its_characters(files, kind, text, letters):
    tokenizer = build_tokenizer(str(files(kind)), None, KINDS[kind])
    ((ids, sizes),) = tokenizer.encode_sized([text])
    pieces = [tokenizer.library.id_to_token(i).removeprefix("##") for i in ids]
    pieces = [[piece] if piece.startswith("<0x") else piece for piece in pieces]
    assert sizes.tolist() == walked(text, pieces, letters)


@pytest.mark.parametrize("kind", INEXACT)
def test_the_bytes_of_the_tokens_of_a_text_are_its_bytes(files, kind):
    tokenizer = build_tokenizer(str(files(kind)), None, KINDS[kind])
    texts = [*HARD_TEXTS, *SENTENCES, f"a {KINDS[kind]} b{KINDS[kind]}", "\ud800", ""]
    batch = tokenizer.encode_batch(texts)
    for text, expected, (ids, sizes) in zip(texts, batch, tokenizer.encode_sized(texts), strict=True):
        assert ids == expected
        assert len(sizes) == len(ids)
        if ids:
            assert sizes.sum() == len(text.encode(errors="replace")) + 2 * (text == "\ud800")
            assert sizes.min() >= 0
    assert sum(map(bool, batch)) > 30


@pytest.mark.parametrize("kind", INEXACT)
def test_what_needs_the_bytes_of_tokens_is_refused(files, kind):
    tokenizer = build_tokenizer(str(files(kind)), None, KINDS[kind])
    assert tokenizer.byte_counts() is None
    for call in (tokenizer.token_bytes, lambda: tokenizer.decode_bytes([3])):
        with pytest.raises(DataError, match="no fixed bytes"):
            call()
    other = InexactTokenizer(tokenizer.text.replace('"version"', ' "version"'), KINDS[kind])
    assert tokenizer.same_tokens(tokenizer)
    assert not tokenizer.same_tokens(other)
    assert not BpeTokenizer.train(SENTENCES, 300).same_tokens(tokenizer)


def test_which_token_ends_a_text(files):
    path = files("llama")
    with pytest.raises(DataError, match=r"no <\|endoftext\|> token: .*--end_token, such as <s> or </s>"):
        build_tokenizer(str(path), None)
    config = path.with_name("tokenizer_config.json")
    for written in ("</s>", {"content": "</s>", "lstrip": False}):
        config.write_text(json.dumps({"eos_token": written}))
        assert build_tokenizer(str(path), None).end_of_text == 2
    assert build_tokenizer(str(path), None, "<s>").end_of_text == 1  # what is said comes first
    assert build_tokenizer(str(path), None, "<s>").hash != build_tokenizer(str(path), None).hash
    config.write_text(json.dumps({"eos_token": None}))
    path.with_name("special_tokens_map.json").write_text(json.dumps({"eos_token": "<s>"}))
    assert build_tokenizer(str(path), None).end_of_text == 1
    config.write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json cannot be read"):
        build_tokenizer(str(path), None)
    with pytest.raises(DataError, match=r"--end_token=</s> is for a tokenizer\.json: gpt2"):
        build_tokenizer("gpt2", None, "</s>")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model"].update(dropout=0.1), r"dropout 0\.1"),
        (lambda c: c["added_tokens"][2].update(special=False), "</s> would be found in texts"),
        (lambda c: c["model"]["vocab"].update({"zz": 5}), "share a number"),
        (lambda c: c.update(model={"type": "Other"}), "cannot be read as a tokenizer"),
        (lambda c: c["model"].update(unk_token="</s>"), "</s> stands for what it does not know"),
        (lambda c: c["added_tokens"].pop(2), "</s> is an ordinary token"),
    ],
)
def test_what_serves_no_training(files, change, message):
    path = files("llama")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        build_tokenizer(str(path), None, "</s>")


@pytest.mark.parametrize(
    ("kind", "without", "mend"),
    [
        ("byte_level", "Q", {"unk_token": "!"}),
        ("llama", "<0xE6>", {"unk_token": "<unk>"}),
        ("llama", None, {"byte_fallback": True}),
    ],
)
def test_a_bpe_that_would_leave_characters_out_is_refused(kind, without, mend):
    import tokenizers

    content = json.loads(tokenizer_json(kind))
    model = content["model"]
    model |= {"unk_token": None, "byte_fallback": without == "<0xE6>"}
    last = max(model["vocab"], key=model["vocab"].get)
    if without is not None:  # the last token takes its number
        model["merges"] = [pair for pair in model["merges"] if "".join(pair) != last]
        model["vocab"][last] = model["vocab"].pop(without)
    left_out = tokenizers.Tokenizer.from_str(json.dumps(content)).encode("数Q", add_special_tokens=False)
    assert "Q" not in left_out.tokens
    with pytest.raises(DataError, match=r"leaves out of a text what .* no unk_token"):
        from_text(json.dumps(content), KINDS[kind], "")
    model |= mend
    tokenizer = from_text(json.dumps(content), KINDS[kind], "")
    assert not tokenizer.exact
    assert len(tokenizer.encode("数Q")) > len(left_out.ids)


def test_a_text_that_the_library_cannot_encode(files):
    content = json.loads(tokenizer_json("unigram"))
    content["model"]["unk_id"] = None
    with pytest.raises(DataError, match="cannot encode a text"):
        InexactTokenizer(json.dumps(content), "</s>").encode("数")


@pytest.mark.parametrize("kind", INEXACT)
def test_a_data_set_counts_the_bytes_of_the_original_text(prepared, kind, capsys):
    folder, documents = prepared(kind)
    said = capsys.readouterr().err
    assert "not a lossless byte-level BPE" in said
    assert ("it has no ByteLevel pre-tokenizer" in said) == (kind == "llama")
    assert "normalizer" not in said  # without it, Llama's vocabulary would know no spaces
    shares = []
    for split in ("train", "val"):
        lost = Dataset(folder, split, 4).tokens == {"unigram": 0, "wordpiece": 0}.get(kind, -1)
        shares.append(f"{split} {lost.mean():.1%} ({lost.sum():,} of {len(lost):,})")
    assert (f"text is lost: {', '.join(shares)}. Take" in said) == (kind != "llama")  # which has bytes
    meta = json.loads((folder / "meta.json").read_text())
    assert not (folder / "token_bytes.npy").exists()
    tokenizer, found = Dataset(folder, "val", 4).tokenizer(), {}
    left = sorted(map(len, tokenizer.encode_batch(documents)))
    for split in ("train", "val"):
        data = Dataset(folder, split, 4)
        assert len(list(data.verified())) == 1
        found[split] = np.split(data.tokens, np.flatnonzero(data.tokens == tokenizer.end_of_text) + 1)[:-1]
    assert sorted(len(part) - 1 for parts in found.values() for part in parts) == left
    counts = [meta["splits"][split] for split in ("train", "val")]
    assert sum(count["bytes"] for count in counts) == sum(len(text.encode()) for text in documents)
    assert [count["documents"] for count in counts] == [len(found["train"]), len(found["val"])]
    # a document's tokens say which it is, and so the bytes of a split
    sizes = {tuple(tokenizer.encode(text)): len(text.encode()) for text in documents}
    assert counts[1]["bytes"] == sum(sizes[tuple(part[:-1].tolist())] for part in found["val"])
    windows = Dataset(folder, "val", 4).validation_windows(10)
    expected = windows[:, 1:].size * counts[1]["bytes"] / counts[1]["tokens"]
    assert Dataset(folder, "train", 4).target_bytes(windows) == round(expected)
    prepared(kind)
    assert "is already prepared" in capsys.readouterr().out
    with pytest.raises(DataError, match="was prepared otherwise"):
        prepared(kind, end_token={"wordpiece": "[CLS]"}.get(kind, "<unk>"))


@pytest.mark.parametrize("strange", [("train",), ("val",), ("train", "val"), ()])
def test_unknown_text_is_told_of_whichever_split_has_it(files, tmp_path, capsys, monkeypatch, strange):
    monkeypatch.setattr(binary, "PORTION", 7)
    texts = {"train": [], "val": []}
    for word in map("".join, itertools.permutations("fract", 3)):  # what a text says decides its split
        for split, found in texts.items():
            text = f"{word} 数" if split in strange else word
            found += [text] if in_validation(text, 0.4) == (split == "val") else []
    texts = texts["train"] + texts["val"]
    keys = {"end_token": "[SEP]"}
    binary.prepare(lambda: iter(texts), {}, str(files("wordpiece")), tmp_path / "set", 0.4, 1, **keys)
    said = capsys.readouterr().err
    assert ("whose text is lost" in said) == bool(strange)
    for split in ("train", "val"):
        tokens = Dataset(tmp_path / "set", split, 4).tokens
        lost = (tokens == 0).sum()
        assert (lost > 0) == (split in strange)
        assert not strange or f"{split} {lost / len(tokens):.1%} ({lost} of {len(tokens)})" in said


def test_short_documents_are_told_by_their_tokens(files, tmp_path):
    """A text may have more tokens than bytes, where a normalizer makes it longer."""
    tokenizer = InexactTokenizer(tokenizer_json("unigram"), "</s>")
    texts = [f"\ufdfa{a}" for a in "fraction"] + list("fraction")
    expected = [text for text in texts if len(tokenizer.encode(text)) >= 6]
    assert any(len(text.encode()) < 6 for text in expected)
    assert len(expected) == 8
    out = tmp_path / "set"
    keys = {"min_tokens": 6, "end_token": "</s>"}
    meta = binary.prepare(lambda: iter(texts), {}, str(files("unigram")), out, 0.4, 1, **keys)
    assert (meta["documents_read"], meta["left_out"]) == (16, 8)


def test_a_mixture_counts_each_of_its_sets(prepared, tmp_path):
    folder, _ = prepared("llama")
    other = tmp_path / "other"
    script = load_script("text")
    (tmp_path / "other.jsonl").write_text(
        "".join(json.dumps({"text": f"数数数 {i}"}) + "\n" for i in range(60))
    )
    keys = {"val_fraction": 0.3, "workers": 1, "tokenizer": str(folder / "tokenizer.json")}  # and its end
    script.main(script.PrepareConfig(input=str(tmp_path / "other.jsonl"), out=str(other), **keys))
    mixed = mixture.open_dataset(f"{folder}:1,{other}:1", "val", 4)
    windows = mixed.validation_windows(20)
    expected = 0
    for j, source in enumerate((folder, other)):
        count = json.loads((source / "meta.json").read_text())["splits"]["val"]
        expected += windows[j::2, 1:].size * count["bytes"] / count["tokens"]
    assert abs(mixed.target_bytes(windows) - expected) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_trained_sampled_measured_and_exported(prepared, run, kind, tmp_path, capsys):
    from transformers import AutoTokenizer

    dataset, documents = prepared(kind)
    folder, log = run("a", *KEYS, f"--dataset={dataset}")
    count = json.loads((dataset / "meta.json").read_text())["splits"]["val"]
    tokenizer = Dataset(dataset, "val", 4).tokenizer()
    last = [record for record in log if "val_loss" in record][-1]
    if kind != "byte_level":
        expected = last["val_loss"] * count["tokens"] / count["bytes"] / math.log(2)
        assert last["val_bits_per_byte"] == pytest.approx(expected, rel=0.01)  # bytes are rounded
    capsys.readouterr()
    sample.main([str(folder), "--start=The naïve", "--max_new_tokens=30", "--temperature=1"])
    assert capsys.readouterr().out.split("\n", 1)[1].startswith("The naïve")

    text = tmp_path / "text.txt"
    text.write_text("The naïve 数 of a fraction. " * 3)
    (first,) = tokenizer.encode_sized([text.read_text()])
    first = tokenizer.byte_counts()[first[0]] if kind == "byte_level" else first[1]
    data = Dataset(dataset, "val", 4)
    ends = data.tokens == tokenizer.end_of_text
    mean = count["bytes"] / (~ends).sum()
    if kind == "byte_level":
        mean = tokenizer.byte_counts()[data.tokens[:40]].sum() / (~ends[:40]).sum()
    for texts, size, limit in (
        (text, len(text.read_bytes()), []),
        (dataset, count["bytes"], []),
        (dataset, count["bytes"], ["--join=separate"]),
        (text, first[:5].sum(), ["--max_tokens=5"]),
        (text, 11, ["--max_bytes=13"]),  # the next character has three bytes
        (dataset, round(mean * (~ends[:40]).sum()), ["--max_tokens=40"]),
    ):
        out = tmp_path / "found.json"
        out.unlink(missing_ok=True)
        evaluate.main([str(folder), f"--texts={texts}", f"--json={out}", *limit])
        (result,) = json.loads(out.read_text())["models"][0]["results"].values()
        assert result["bytes"] == size
        expected = result["loss"] * result["tokens"] / math.log(2) / size
        assert result["bits_per_byte"] == pytest.approx(expected)
        if texts == text and not limit:
            unknown = sum(i == tokenizer.of_unknown()[1] for i in tokenizer.encode(text.read_text()))
            assert result["unknown_tokens"] == unknown
            assert (unknown > 0) == (kind in ("unigram", "wordpiece"))
            said = f"know: a, {text}: {unknown / result['tokens']:.1%} ({unknown:,} tokens)"
            assert (said in capsys.readouterr().out) == (unknown > 0)
    capsys.readouterr()

    exported = tmp_path / "exported"
    export.main([str(folder), str(exported)])
    theirs = AutoTokenizer.from_pretrained(exported)
    assert theirs(documents[5])["input_ids"] == tokenizer.encode(documents[5])
    assert theirs.eos_token_id == theirs.bos_token_id == tokenizer.end_of_text
    unknown = {"llama": "<unk>", "unigram": "<unk>", "wordpiece": "[UNK]"}.get(kind)
    assert theirs.unk_token == unknown
    assert unknown is None or theirs.unk_token_id == tokenizer.library.token_to_id(unknown)
    capsys.readouterr()
    sample.main([str(exported), "--start=a", "--max_new_tokens=3"])
    assert "\na" in capsys.readouterr().out


def test_tokens_with_bytes_are_read_by_a_model_whose_tokens_have_none(prepared, run, tmp_path):
    """They are decoded and encoded again; the bytes are those of the text up to the limit."""
    exact, _ = prepared("byte_level")
    folder, _ = run("a", *KEYS, f"--dataset={prepared('unigram')[0]}")
    count = json.loads((exact / "meta.json").read_text())["splits"]["val"]
    for limit, size in (([], count["bytes"]), (["--max_bytes=100"], 100)):
        out = tmp_path / "found.json"
        out.unlink(missing_ok=True)
        evaluate.main([str(folder), f"--texts={exact}", f"--json={out}", "--ngrams", *limit])
        found = json.loads(out.read_text())
        rows = found["models"][0]["results"], *found["ngrams"][0]["results"].values()
        for (result,) in (row.values() for row in rows):
            expected = result["loss"] * result["tokens"] / math.log(2) / size
            # the last token may have other bytes than the limit leaves
            assert result["bits_per_byte"] == pytest.approx(expected, rel=0.1 if limit else 1e-6)
            assert result["bytes"] <= size


def test_a_model_of_another_tokenizer_cannot_read_the_tokens(prepared, run, tmp_path, capsys):
    inexact, _ = prepared("llama")
    folder, _ = run("a", "--max_iters=2")  # of another tokenizer
    other, _ = run("b", *KEYS, f"--dataset={inexact}")
    (tmp_path / "text.txt").write_text("The naïve fraction.")
    capsys.readouterr()
    evaluate.main([str(folder), str(other), f"--texts={tmp_path / 'text.txt'}"])
    assert "an inexact one loses" in capsys.readouterr().out
    for limit in ([], ["--max_bytes=50"]):
        with pytest.raises(SystemExit) as stop:
            evaluate.main([str(folder), f"--texts={inexact}", *limit])
        assert "without exact bytes" in str(stop.value.code)


def test_a_model_folder_whose_end_token_no_file_names(prepared, run, tmp_path, capsys):
    dataset, _ = prepared("wordpiece")
    folder, _ = run("a", *KEYS, f"--dataset={dataset}", "--ffn=mlp", "--attention=softmax")
    exported = tmp_path / "exported"
    export.main([str(folder), str(exported)])
    for name in ("data_tokenizer.json", "tokenizer_config.json"):
        (exported / name).unlink()
    (tmp_path / "text.txt").write_text("the fraction")
    keys = [str(exported), f"--texts={tmp_path / 'text.txt'}"]
    with pytest.raises(SystemExit) as stop:
        evaluate.main(keys)
    assert "--end_token, such as [CLS] or [SEP]" in str(stop.value.code)
    named = f"--tokenizer={exported / 'tokenizer.json'}"
    evaluate.main([*keys, named, "--end_token=[SEP]"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        evaluate.main([*keys, "--end_token=[SEP]"])
    assert "end_token is of --tokenizer" in capsys.readouterr().err
