"""sample.py: what it prints, what it keeps, what it refuses."""

import io
import itertools
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from corpus.tokenizer import BytesTokenizer
from decoding.beam import Hypothesis
from decoding.decoder import Decoder
from layers import ATTENTION
from model import GPT
from models.architecture import ModelConfig
from models.kinds import built
from sample import load_model, main, read_start, show
from training import pretrained
from training.pretrained import Source

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def trained(run):
    return run("trained", "--max_iters=10")[0]


def sample(capsys, *arguments):
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert stop.value.code not in (0, None)
    return str(stop.value.code) + capsys.readouterr().err


def test_writes_on_from_the_start(trained, capsys):
    said = sample(capsys, trained, "--start=abc d=e", "--num_samples=2", "--max_new_tokens=20")
    assert said.startswith("--- sample 1 of 2 ---\nabc d=e")
    assert "--- sample 2 of 2 ---\nabc d=e" in said
    kept = (trained / "samples.txt").read_text()
    assert kept.count("abc d=e") == 2
    assert "temperature 0.8, top_k 200, top_p None, seed 1337" in kept
    sample(capsys, trained, "--max_new_tokens=3")
    assert (trained / "samples.txt").read_text().startswith(kept)  # appended, nothing lost


@pytest.mark.parametrize("keys", [["--start=ab", "--num_samples=2"], ["--interactive"]])
def test_a_full_disk_is_told_and_the_texts_are_printed(trained, capsys, typed, monkeypatch, keys):
    """The status is 1, with prompts from a pipe too."""
    monkeypatch.setattr("host.disk.no_link", lambda path, flags: os.open("/dev/full", flags))
    typed(b"ab\nab\n")
    with pytest.raises(SystemExit) as stop:
        main([str(trained), "--max_new_tokens=5", *keys])
    assert stop.value.code == 1
    said = capsys.readouterr()
    assert len([line for line in said.out.splitlines() if line.startswith("ab")]) == 2
    assert said.err.count("samples.txt could not be written (the disk") == 2


def test_the_seed_decides(trained, capsys):
    def text(*keys):
        return sample(capsys, trained, "--max_new_tokens=30", "--temperature=1.5", *keys)

    assert text("--seed=1") == text("--seed=1") != text("--seed=2")
    assert text("--temperature=0", "--seed=1") == text("--temperature=0", "--seed=2")
    assert text("--top_k=1") == text("--temperature=0") == text("--top_p=1e-9")


@torch.no_grad()
@pytest.mark.parametrize("has_units", [False, True])
def test_the_dtype_of_the_weights(tiny, monkeypatch, has_units):
    """auto asks the hardware. SAFFU's stay float32."""
    tokens = torch.tensor([[256, 1, 2, 3]])
    gpt = tiny(attention="cattn_m", ffn="cffn_gated", vocab_size=257)
    saffu = ModelConfig(model="saffu", block_size=17, saffu_block=6, saffu_end_of_text=256, vocab_size=257)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_units})
    for model in map(built, (gpt, saffu)):
        weights = {name: 4 * weight for name, weight in model.init_weights().state_dict().items()}
        source = Source(Path("run"), model.config, weights.copy, BytesTokenizer().to_json())
        for name in ("float32", "bfloat16", "auto"):
            asked = has_units if name == "auto" else name == "bfloat16"
            half = asked and model.config.model == "gpt"
            found, _ = load_model(source, "cpu", name)
            model.float().load_state_dict(weights)
            expected = model.to(torch.bfloat16 if half else torch.float32)(tokens)[:, -1]
            for step in (found.decode, Decoder(found)):
                cache = found.new_cache(1)
                logits = [step(token, cache) for token in tokens.split(1, 1)][-1]
                assert logits.dtype == expected.dtype
                tolerance = (2e-2 if half else 1e-5) * expected.abs().max().item()
                torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("attention", ATTENTION)
def test_longer_than_the_block(run, capsys, attention):
    folder, _ = run("a", "--max_iters=4", f"--attention={attention}")
    said = sample(capsys, folder, f"--start={'ab cd ' * 20}", "--max_new_tokens=100")
    assert len(said) > 150


def test_the_window(run, capsys):
    """A model without a table of positions sees more than its block of 32; others refuse."""
    folder, _ = run("rope", "--max_iters=4", "--position=rope")
    keys = (folder, f"--start={'ab cd ' * 20}", "--num_samples=5")
    capsys.readouterr()
    texts = [sample(capsys, *keys, f"--window={n}") for n in (32, 100)]
    assert texts[0] == sample(capsys, *keys) != texts[1]
    learned, _ = run("learned", "--max_iters=4")
    said = refused(capsys, learned, "--window=33")
    assert "33 tokens do not fit into block_size=32" in said


def test_compiled_steps_write_the_same(trained, capsys, monkeypatch):
    keys = (trained, "--start=abc", "--max_new_tokens=20", "--num_samples=2")
    expected = sample(capsys, *keys)
    monkeypatch.setattr("sample.missing_for_compile", lambda: ["a C++ compiler"])
    keys += ("--compile=True",)
    assert "torch.compile lacks a C++ compiler" in refused(capsys, *keys)
    monkeypatch.setattr("sample.missing_for_compile", lambda: [])
    compiled = []

    def decoding(model, backend):
        assert backend == "inductor"
        compiled.append(Decoder(model, "eager"))
        return compiled[0]

    monkeypatch.setattr("sample.Decoder", decoding)
    assert sample(capsys, *keys) == expected
    assert len(compiled) == 1


def test_beams(trained, capsys):
    """Samples are the best texts of one search, which no seed changes; one beam is greedy."""
    keys = (trained, "--start=abc", "--max_new_tokens=40")
    texts = sample(capsys, *keys, "--beams=3", "--num_samples=3", "--length_penalty=0.5").split(
        "--- sample "
    )
    assert len({text.partition("\n")[2] for text in texts[1:]}) == 3
    assert all(text.partition("\n")[2].startswith("abc") for text in texts[1:])
    assert sample(capsys, *keys, "--beams=3", "--length_penalty=0.5", "--seed=2").endswith(
        texts[1].partition("\n")[2]
    )
    assert "--- best.pt, beams 3, length_penalty 0.5 ---" in (trained / "samples.txt").read_text()
    assert sample(capsys, *keys, "--beams=1") == sample(capsys, *keys, "--temperature=0")


@pytest.mark.parametrize("how", ["--temperature=0", "--top_k=2", "--beams=2"])
def test_no_repeats(trained, capsys, how):
    keys = (trained, "--start=abab", "--max_new_tokens=60", how)
    for said, repeated in (
        (sample(capsys, *keys), True),
        (sample(capsys, *keys, "--no_repeat_ngram=2"), False),
    ):
        text = said.partition("\n")[2].rstrip("\n")[4:]
        pairs = list(itertools.pairwise(text))
        assert len(pairs) > 10
        assert (len(set(pairs)) < len(pairs)) == repeated
    assert ", no_repeat_ngram 2 ---" in (trained / "samples.txt").read_text()


def test_a_search_that_finds_few_texts(trained, capsys, monkeypatch):
    monkeypatch.setattr("decoding.beam.beam_search", lambda *rest, **keys: [[Hypothesis([*b"xy"], 0.0)]])
    main([str(trained), "--start=ab", "--beams=2", "--num_samples=2"])
    said = capsys.readouterr()
    assert said.out == "--- sample 1 of 2 ---\nabxy\n--- sample 2 of 2 ---\nab\n"
    assert "sample.py: the search found 1 text only" in said.err


def test_start_from_a_file_or_a_checkpoint(trained, capsys, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_bytes(b"a\r\nb")  # as data are prepared
    assert read_start(f"FILE:{prompt}") == "a\r\nb"
    prompt.write_text("déjà vu", encoding="utf-8-sig")  # the mark is no part of the text
    said = sample(capsys, trained / "ckpt" / "best.pt", f"--start=FILE:{prompt}", "--max_new_tokens=5")
    assert "déjà vu" in said
    assert "\ufeff" not in said
    assert not (trained / "samples.txt").exists()
    said = refused(capsys, trained, f"--start=FILE:{tmp_path / 'none.txt'}")
    assert "none.txt cannot be read: No such file" in said
    prompt.write_bytes(b"\xff\xfe\xff")
    assert "prompt.txt is not UTF-8" in refused(capsys, trained, f"--start=FILE:{prompt}")


def always(trained, token):
    """The checkpoint of a model for which this token is always the likeliest."""
    content = torch.load(trained / "ckpt" / "best.pt", weights_only=True)
    content["model"]["embedding.weight"].zero_()
    content["model"]["norm.weight"].fill_(1.0)
    # the positions decide alone, and of all tokens only this one has a score other than 0
    content["model"]["position.table.weight"][:] = torch.arange(32.0)
    content["model"]["embedding.weight"][token] = torch.linspace(-1, 1, 32)
    torch.save(content, trained / "ckpt" / "best.pt")
    return trained


def test_stops_at_the_end_of_text(trained, capsys):
    always(trained, 256)
    said = sample(capsys, trained, "--start=abc", "--temperature=0", "--max_new_tokens=50")
    assert said == "--- sample 1 of 1 ---\nabc\n"


def test_characters_of_several_bytes_are_printed_whole(trained, capsys, monkeypatch):
    """Bytes that are no character become U+FFFD; those that are one appear when complete."""
    tokens = [*"é€".encode(), 0xFF, *b"x", 0xC3]
    monkeypatch.setattr(GPT, "generate", lambda self, *rest, **keys: iter(tokens))
    assert sample(capsys, trained) == "--- sample 1 of 1 ---\né€\ufffdx\ufffd\n"


@pytest.fixture
def typed(monkeypatch):
    """typed(bytes): standard input is a pipe with these bytes."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))


def test_each_line_of_a_pipe_is_continued(trained, capsys, typed):
    """As by --start, an empty line too; prompts longer than the window lose their beginning as there."""
    lines = ["ab", "", "déjà vu", "cd ab " * 20]
    keys = (trained, "--max_new_tokens=20", "--temperature=0")
    expected = [sample(capsys, *keys, f"--start={line}").partition("\n")[2] for line in lines]
    kept = (trained / "samples.txt").read_text()
    (trained / "samples.txt").unlink()
    typed("\n".join(lines).encode())
    assert sample(capsys, *keys, "--interactive=True") == "".join(expected)
    assert (trained / "samples.txt").read_text() == kept
    typed(b"ab\n\xff")
    said = sample(capsys, *keys, "--interactive", "--num_samples=2", "--seed=3")
    assert said.count("--- sample 2 of 2 ---\nab") == 1
    assert said.count("--- sample 2 of 2 ---\n\ufffd") == 1
    typed(b"")
    assert sample(capsys, *keys, "--interactive") == ""
    assert "start acts without interactive only" in refused(capsys, *keys, "--interactive", "--start=a")


def test_a_line_that_the_tokenizer_cannot_encode(trained, capsys, typed, monkeypatch):
    from corpus import DataError
    from corpus.tokenizer import BytesTokenizer

    encode = BytesTokenizer.encode

    def picky(self, text):
        if text == "bad":
            raise DataError("no token for it")
        return encode(self, text)

    monkeypatch.setattr(BytesTokenizer, "encode", picky)
    typed(b"bad\nab\n")
    main([str(trained), "--interactive", "--max_new_tokens=2"])
    said = capsys.readouterr()
    assert said.out.startswith("ab")
    assert "sample.py: no token for it" in said.err


def test_an_interrupt_stops_one_text(trained, capsys, typed, monkeypatch):
    """What it had written is kept, and the next line is continued; between texts it ends the program."""
    interrupted = []

    def generate(self, prompt, *rest, **keys):
        yield from b"xyz"
        if prompt == [256, *b"one"]:
            interrupted.append(prompt)
            signal.raise_signal(signal.SIGINT)
        yield from b"!"

    monkeypatch.setattr(GPT, "generate", generate)
    typed(b"one\ntwo\n")
    said = sample(capsys, trained, "--interactive", "--num_samples=2")
    texts = ["--- sample 1 of 2 ---\nonexyz", *(f"--- sample {n} of 2 ---\ntwoxyz!" for n in (1, 2))]
    assert said == "\n".join(texts) + "\n"
    assert len(interrupted) == 1
    kept = (trained / "samples.txt").read_text()
    assert kept.count("---\nonexyz\n\n") == 1
    assert kept.count("---\ntwoxyz!\n\n") == 2
    monkeypatch.setattr("sample.keep", lambda *rest: signal.raise_signal(signal.SIGINT))
    typed(b"two\ntwo\n")
    assert sample(capsys, trained, "--interactive") == "twoxyz!\n"


def test_what_was_printed_is_kept(monkeypatch):
    """An interrupt at the end of printing a piece does not lose the piece."""

    def interrupted(*pieces, **keys):
        raise KeyboardInterrupt

    monkeypatch.setattr("sample.print", interrupted, raising=False)
    written = []
    with pytest.raises(KeyboardInterrupt):
        show(iter("ab"), written)
    assert written == ["a"]


def read_until(terminal, end):
    said = b""
    while not said.endswith(end):
        assert select.select([terminal], [], [], 60)[0], f"nothing follows {said!r}"
        said += os.read(terminal, 1)
    return said


def until_asleep(process):
    """Python's prompt forgets a signal that comes after its last echo and before it waits for a key."""
    stat, end = Path(f"/proc/{process.pid}/stat"), time.monotonic() + 60
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_at_a_terminal(trained):
    """Ctrl-C stops a text that has no end, then clears a half-written line, then ends the program."""
    always(trained, ord("x"))
    terminal, side = pty.openpty()
    # a new session, whose first terminal is the one that is opened first: it gets the signals of the keys
    start = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); import sample; sample.main(sys.argv[1:])"
    command = [sys.executable, "-c", start, str(trained), "--interactive", "--temperature=0"]
    process = subprocess.Popen(
        [*command, "--max_new_tokens=1000000000"],
        stdin=side, stdout=side, stderr=side, start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    os.close(side)
    try:
        assert b"Ctrl-C stops a text" in read_until(terminal, b"\n> ")
        os.write(terminal, b"abc\n")
        read_until(terminal, b"abcxxx")
        os.write(terminal, b"\x03")
        assert b"Traceback" not in read_until(terminal, b"\n> ")
        os.write(terminal, b"half")
        read_until(terminal, b"half")
        until_asleep(process)
        os.write(terminal, b"\x03")
        read_until(terminal, b"\n> ")
        until_asleep(process)
        os.write(terminal, b"\x03")
        assert process.wait(30) == 0
        assert b"Traceback" not in os.read(terminal, 1000)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert "\nabcxxx" in (trained / "samples.txt").read_text()


def test_the_prompt_begins_a_document(trained, capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        GPT, "generate", lambda self, prompt, *rest, **keys: iter(seen.append(prompt) or [])
    )
    sample(capsys, trained, "--start=ab")
    assert seen == [[256, *b"ab"]]


def test_best_or_last(trained, capsys):
    (last,) = (trained / "ckpt").glob("step_*10.pt")
    content = torch.load(last, weights_only=True)
    torch.save({**content, "step": 77}, trained / "ckpt" / "step_00000077.pt")
    for which, step in (("best", "step 10"), ("last", "step 77")):
        main([str(trained), f"--which={which}", "--max_new_tokens=1"])
        assert step in capsys.readouterr().err


def test_a_model_with_a_larger_vocabulary_than_the_tokenizer(run, capsys):
    """The ids that the tokenizer does not have are never drawn."""
    folder, _ = run("large", "--max_iters=2", "--vocab_size=2000")
    sample(capsys, folder, "--max_new_tokens=200", "--temperature=3", "--top_k=None")


def test_what_it_refuses(trained, capsys, tmp_path):
    assert "nowhere does not exist" in refused(capsys, tmp_path / "nowhere")
    assert "holds neither ckpt" in refused(capsys, tmp_path)
    assert "--out_dir=... is required (usage: " in refused(capsys)
    assert "out/b: one model only" in refused(capsys, "out/a", "out/b")
    for argument, message in [
        ("--temperature=-1", "temperature must be 0 or"),
        ("--seed=-1", "seed must be at least 0"),
        ("--top_p=0", "top_p must be above 0"),
        ("--top_k=0", "top_k must be at least 1"),
        ("--num_samples=0", "num_samples must be at least 1"),
        ("--learning_rate=1", "learning_rate is a key of train.py"),
        ("--beams=0", "beams must be at least 1, not 0"),
        ("--no_repeat_ngram=0", "no_repeat_ngram must be at least 1, not 0"),
        ("--length_penalty=2", "length_penalty acts with beams only"),
        ("--which=newest", "which must be one of 'best', 'last'"),
    ]:
        assert message in refused(capsys, trained, argument)
    for penalty in ("130.0", "-500.0"):
        said = refused(capsys, trained, "--beams=2", f"--length_penalty={penalty}")
        assert f"length_penalty={penalty} must be in" in said
    said = refused(capsys, trained, "--beams=2", "--num_samples=3", "--temperature=1", "--top_p=0.5")
    assert "num_samples=3: a search keeps the best 2" in said
    assert "temperature=1.0 acts on drawn tokens" in said
    assert "leave out top_p or beams" in said
    os.mkfifo(tmp_path / "pipe")
    assert "it is a named pipe: give a file" in refused(
        capsys, trained, f"--start=FILE:{tmp_path / 'pipe'}"
    )
    foreign = tmp_path / "foreign.pt"
    torch.save({"model": {}}, foreign)
    assert "foreign.pt was not written by" in refused(capsys, foreign)
    content = torch.load(trained / "ckpt" / "best.pt", weights_only=True)
    content["config"]["n_layer"] = 3
    torch.save(content, foreign)
    assert "is of another model: it lacks blocks.2" in refused(capsys, foreign)
    del content["config"]["n_layer"]
    torch.save(content, foreign)
    assert "has no model configuration" in refused(capsys, foreign)


def test_a_compiler_that_fails_at_the_first_step(trained, capsys, monkeypatch, tmp_path):
    """The real torch.compile, and a compiler that builds nothing but the empty program of the check."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "lacks a C++ compiler that works" in refused(capsys, trained, "--compile=True")

    def failing(step, **keys):
        def first(*arguments):
            raise torch._inductor.exc.InductorError(RuntimeError("no working compiler\nand more"), None)

        return first

    monkeypatch.setattr("sample.missing_for_compile", lambda: [])
    monkeypatch.setattr(torch, "compile", failing)
    said = refused(capsys, trained, "--compile=True")
    assert "torch.compile failed (no working compiler)" in said
    assert "leave out --compile" in said


@pytest.mark.parametrize("how", ["--temperature=0", "--temperature=1", "--beams=2"])
def test_weights_that_are_not_finite_are_told(trained, capsys, monkeypatch, how):
    build = pretrained.build

    def damaged(*given):
        model = build(*given)
        model.norm.weight.data.fill_(float("nan"))
        return model

    monkeypatch.setattr(pretrained, "build", damaged)
    assert "the model's outputs are not finite" in refused(capsys, trained, how)


def test_outputs_that_are_not_finite_are_told(trained, capsys, monkeypatch):
    def broken(probabilities, *given, **keys):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")

    monkeypatch.setattr(torch, "multinomial", broken)
    assert "the model's outputs are not finite" in refused(capsys, trained)
