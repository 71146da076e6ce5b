"""Our adapter against the harness's own `hf` model over the same weights, and against plain loops."""

import json
import math
import re
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
import yaml

from corpus.file_tokenizer import BpeTokenizer
from corpus.tokenizer import END_OF_TEXT
from evaluation import EvaluationError, models, zero_shot
from evaluation import harness as harness_process
from models import kinds
from models.architecture import ModelConfig
from models.language_model import sample_token
from tests.conftest import documents
from tests.training.transformers_models import drawn, gpt2, llama

BLOCK = 64
TEXTS = list(documents())
SHORT = [text for text in TEXTS if text.count(" ") < 20]  # about a token a word
LONG = [text for text in TEXTS if text.count(" ") > 30]
WRITE = {"until": ["h f", "b"], "max_gen_toks": 20, "do_sample": False}
TOLERANCE = {"rel": 1e-5, "abs": 1e-4}  # of sums over up to 64 tokens in float32


@pytest.fixture
def harness(monkeypatch, tmp_path):
    """The harness, in a world without network."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")  # of its `hf` model
    import datasets
    import lm_eval.evaluator

    def refuse(self, address, *_):
        raise OSError(f"no network in tests: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)  # takes seconds
    return lm_eval


@pytest.fixture(scope="module")
def tokenizer():
    return BpeTokenizer.train(TEXTS, 300)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """{kind: folder of a transformers model whose every weight matters}"""
    made = {}
    for kind, config in (
        ("gpt2", gpt2(n_positions=BLOCK, vocab_size=tokenizer.vocab_size)),
        ("llama", llama(max_position_embeddings=BLOCK, vocab_size=tokenizer.vocab_size)),
    ):
        made[kind] = tmp_path_factory.mktemp(kind)
        model = drawn(config)
        # what it writes is text that has the same tokens when it is read again
        strange = [
            token
            for token, piece in enumerate(tokenizer.token_bytes())
            if token != tokenizer.end_of_text and not re.fullmatch(rb"[ a-h]+", piece)
        ]
        model.get_output_embeddings().weight.data[strange] = 0
        model.generation_config.eos_token_id = tokenizer.end_of_text
        model.save_pretrained(made[kind])
        (made[kind] / "tokenizer.json").write_text(tokenizer.text)
    return made


def theirs(folder, batch_size=3):
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    keys = {"bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **keys)
    model = HFLM(str(folder), tokenizer=tokenizer, device="cpu", dtype="float32", batch_size=batch_size)
    assert model.max_length == BLOCK
    return model


def ours(folder, batch_size=3):
    from evaluation.harness_model import HarnessModel

    return HarnessModel(models.load(str(folder)), batch_size)


def requests(*arguments):
    return [SimpleNamespace(args=a, task_name="made up") for a in arguments]


def pairs():
    """Contexts and continuations with everything that is awkward about them."""
    long = " ".join(TEXTS[:9])
    for number, text in enumerate(LONG[:12]):
        words = text.split()
        context, rest = " ".join(words[: number + 1]), words[number + 1 :]
        yield from ((context, " " + " ".join(rest[:n])) for n in (1, 2, 4))
        yield context + "  ", rest[0]  # blanks go to the continuation
    yield from ((f"a question {choice} answer", letter) for choice in "xy" for letter in "abcd")
    yield "", SHORT[0]
    yield "", "a"
    yield END_OF_TEXT, "abc"
    yield "", f"{END_OF_TEXT} gab"
    yield f"{SHORT[1]}{END_OF_TEXT}{SHORT[2]}", " ha é"
    yield from ((long, " " + end) for end in ("a", "ba", SHORT[3]))  # longer than the context
    yield from ((long[:n], " dab") for n in range(150, 190))  # around its length


# --- the same numbers as `hf` ---


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_loglikelihoods_are_those_of_hf(harness, folders, kind):
    asked = list(pairs())
    # continuations that the model would have written itself
    next_one = requests(*((text, {"max_gen_toks": 1}) for text in SHORT[:40]))
    written = ours(folders[kind]).generate_until(next_one, disable_tqdm=True)
    asked += [(text, more) for text, more in zip(SHORT, written, strict=False) if more.startswith(" ")]
    expected = theirs(folders[kind]).loglikelihood(requests(*asked), disable_tqdm=True)
    assert {greedy for _, greedy in expected} == {True, False}
    for batch_size in (1, 3, 100):
        found = ours(folders[kind], batch_size).loglikelihood(requests(*asked), disable_tqdm=True)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], **TOLERANCE)


def test_a_context_of_blanks(harness, folders):
    """They are the continuation's, and an end-of-text token precedes it, as where there is no context. (hf
    ends with an AssertionError.)
    """
    blanks, none = requests((" \n ", "abc"), (" ", " b")), requests(("", " \n abc"), ("", "  b"))
    model = ours(folders["gpt2"])
    assert model.loglikelihood(blanks, disable_tqdm=True) == model.loglikelihood(none, disable_tqdm=True)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_rolling_loglikelihoods_are_those_of_hf(harness, folders, kind):
    asked = [("",), ("a",), *((" ".join(TEXTS[n : n + 1 + n % 4]),) for n in range(9))]
    asked += [(f"{TEXTS[0]}{END_OF_TEXT}{TEXTS[1]}",), (" ".join(TEXTS[:9]),)]
    counts = [len(ours(folders[kind]).tok_encode(text)) for (text,) in asked]
    assert min(counts) == 0
    assert max(counts) > 3 * BLOCK
    expected = theirs(folders[kind]).loglikelihood_rolling(requests(*asked), disable_tqdm=True)
    for batch_size in (1, 100):
        found = ours(folders[kind], batch_size).loglikelihood_rolling(requests(*asked), disable_tqdm=True)
        assert found == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_written_texts_are_those_of_hf(harness, folders, kind):
    other = {"until": "e", "max_gen_toks": 5, "temperature": 0.0}
    asked = [
        (text[: 9 * n + 1], settings) for n, text in enumerate(TEXTS[1:12]) for settings in (WRITE, other)
    ]
    asked.append((" ".join(TEXTS[:9]), WRITE))  # loses its beginning
    expected = theirs(folders[kind]).generate_until(requests(*asked), disable_tqdm=True)
    assert len(set(expected)) > 8
    for batch_size in (1, 4, 100):
        assert (
            ours(folders[kind], batch_size).generate_until(requests(*asked), disable_tqdm=True) == expected
        )
    assert len(ours(folders[kind]).generate_until(requests(("", WRITE)))) == 1


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A folder with a task of each kind, a group and a tag."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = {
        "choices": [
            {
                "question": TEXTS[n][:80],
                "options": [TEXTS[n + k][: 4 + 3 * k] for k in range(4)],
                "answer": n % 4,
            }
            for n in range(24)
        ],
        "last_word": [
            dict(zip(("context", "word"), text.rsplit(" ", 1), strict=True)) for text in TEXTS[:20]
        ],
        "whole": [{"text": " ".join(TEXTS[n : n + 4])} for n in range(6)],
        "writing": [{"start": text, "end": "acdefgh"[n % 7]} for n, text in enumerate(TEXTS[:40])],
    }
    mean = {"aggregation": "mean", "higher_is_better": True}
    keys = {
        "choices": {
            "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{options}}",
            "doc_to_target": "answer", "metric_list": [{"metric": m, **mean} for m in ("acc", "acc_norm")],
            "num_fewshot": 1, "fewshot_split": "test", "tag": "our_tag", "metadata": {"version": 3.0},
        },
        "last_word": {
            "output_type": "loglikelihood", "doc_to_text": "{{context}}", "doc_to_target": "{{' '+word}}",
            "metric_list": [
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                {"metric": "acc", **mean},
            ],
            "tag": "our_tag",
        },
        "whole": {
            "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
            "metric_list": [{"metric": m} for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
        },
        "writing": {
            "output_type": "generate_until", "doc_to_text": "{{start}}", "doc_to_target": "{{end}}",
            "generation_kwargs": WRITE, "metric_list": [{"metric": "exact_match", **mean}],
            "filter_list": [
                {"name": "first", "filter": [{"function": "regex", "regex_pattern": "([a-h])"},
                                             {"function": "take_first"}]},
            ],
        },
    }  # fmt: skip
    for name, examples in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples))
        content = {
            "task": f"our_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
            "test_split": "test",
            **keys[name],
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    group = {
        "group": "our_group",
        "task": ["our_choices", "our_last_word"],
        "aggregate_metric_list": [{"metric": "acc", "weight_by_size": True}],
        "metadata": {"version": 2.0},
    }
    (folder / "group.yaml").write_text(yaml.safe_dump(group))
    return folder


NAMES = ["our_choices", "our_last_word", "our_whole", "our_writing"]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_scores_of_tasks_are_those_of_hf(harness, folders, tasks, kind, monkeypatch):
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    expected = harness.simple_evaluate(
        theirs(folders[kind]),
        tasks=NAMES,
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=harness_process.RESAMPLES,
        log_samples=False,
    )["results"]
    found = harness_process.evaluate(models.load(str(folders[kind])), NAMES, 5, None, str(tasks))
    assert list(found) == NAMES
    compared = 0
    for name in NAMES:
        for metric, value in expected[name].items():
            if "," in metric and value != "N/A":
                assert found[name][metric.removesuffix(",none")] == pytest.approx(value, rel=1e-5), metric
                compared += 1
    assert compared == 2 * 2 + 2 * 2 + 3 + 2
    assert 0 < found["our_choices"]["acc"] < 1
    assert 0 < found["our_writing"]["exact_match,first"] < 1
    assert found["our_whole"]["bits_per_byte"] == pytest.approx(
        math.log2(found["our_whole"]["byte_perplexity"])
    )
    about = {"version": 3.0, "examples": 24, "num_fewshot": 1}
    assert found["our_choices"]["about"] == {**about, "higher_is_better": {"acc": True, "acc_norm": True}}


def test_groups_tags_and_limit(harness, folders, tasks):
    loaded = models.load(str(folders["gpt2"]))
    found = harness_process.evaluate(loaded, ["our_group", "our_tag", "our_whole"], 4, 3, str(tasks))
    assert list(found) == ["our_group", "our_choices", "our_last_word", "our_whole"]
    about = found["our_group"]["about"]
    assert about["version"] == "2.0"
    assert about["parts"] == {name: found[name] for name in NAMES[:2]}
    both = [found[name]["acc"] for name in NAMES[:2]]
    assert found["our_group"]["acc"] == pytest.approx(sum(both) / 2)
    assert {found[name]["about"]["examples"] for name in NAMES[:3]} == {3}


# --- the same numbers as plain loops, for mixers that transformers does not have ---

MIXERS = [
    {"attention": "cattn_m", "ffn": "cffn_gated"},
    {"attention": "cattn_u"},
    {"attention": "bigbird"},
    {"attention": "synthesizer", "position": "none"},
    {"position": "expe", "n_kv_head": 1},
    {
        "model": "saffu",
        "saffu_block": 6,
        "saffu_radius": 3,
        "saffu_block_width": 12,
        "saffu_radius_width": 11,
    },
]


def loaded(model, tokenizer, dtype="float32"):
    return models.Loaded(
        "made up",
        None,
        model.eval(),
        tokenizer,
        model.config,
        tokenizer.end_of_text,
        torch.device("cpu"),
        dtype,
    )


@torch.no_grad()
@pytest.mark.parametrize("keys", MIXERS)
def test_equals_one_request_at_a_time(harness, build, tokenizer, keys):
    from evaluation.harness_model import HarnessModel

    keys = {"block_size": BLOCK, "vocab_size": tokenizer.vocab_size, **keys}
    if keys.get("model") == "saffu":
        model = kinds.built(ModelConfig(saffu_end_of_text=tokenizer.end_of_text, **keys)).init_weights()
        for parameter in model.parameters():
            parameter.mul_(30)
    else:
        model = build(**keys)
    adapter = HarnessModel(loaded(model, tokenizer), 4)
    found = adapter.loglikelihood(requests(*pairs()), disable_tqdm=True)
    for (context, continuation), (nats, greedy) in zip(pairs(), found, strict=True):
        if context:
            blanks = len(context) - len(context.rstrip())
            whole = adapter.tok_encode(context + continuation)
            count = len(whole) - len(adapter.tok_encode(context[: len(context) - blanks]))
        else:
            whole = adapter.tok_encode(continuation)
            count = len(whole) - (whole[0] == tokenizer.end_of_text)
            whole = whole if whole[0] == tokenizer.end_of_text else [tokenizer.end_of_text, *whole]
        whole = whole[-(BLOCK + 1) :]
        logits = model(torch.tensor([whole[:-1]]))[0, -count:]
        there = torch.tensor(whole[-count:])
        expected = logits.log_softmax(-1)[torch.arange(count), there].sum().item()
        assert nats == pytest.approx(expected, **TOLERANCE)
        assert greedy == bool((logits.argmax(-1) == there).all())

    prompts = [TEXTS[n][: 7 * n + 1] for n in range(12)]
    written = adapter.generate_until(requests(*((p, WRITE) for p in prompts)), disable_tqdm=True)
    for prompt, text in zip(prompts, written, strict=True):
        tokens = adapter.tok_encode(prompt)[-(BLOCK - 20) :]
        expected = tokenizer.decode_bytes(
            _until(model.generate(tokens, 20, 0), tokenizer.end_of_text)
        ).decode(errors="replace")
        for stop in WRITE["until"]:
            expected = expected.split(stop)[0]
        assert text == expected
    assert len(set(written)) > 5


def _until(tokens, last):
    for token in tokens:
        if token == last:
            return
        yield token


def test_a_context_is_read_once(harness, build, tokenizer):
    """However many answers it has, and a batch of many sequences costs a few passes."""
    from evaluation.harness_model import HarnessModel

    model = build(block_size=BLOCK, vocab_size=tokenizer.vocab_size)
    read = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[:2].numel()))
    adapter = HarnessModel(loaded(model, tokenizer), 8)
    context = LONG[0][:100]
    length = len(adapter.tok_encode(context))
    assert length > 20
    adapter.loglikelihood(requests(*((context, f" {letter}") for letter in "abcdefgh")), disable_tqdm=True)
    assert (len(read), sum(read)) == (1, length)
    read.clear()
    answers = [" abc da", " had bad", " caffe cab"]
    adapter.loglikelihood(requests(*((context, answer) for answer in answers)), disable_tqdm=True)
    assert len(read) == 2
    assert sum(read) < length + 3 * 12


@torch.no_grad()
def test_in_bfloat16(harness, build, tokenizer):
    from evaluation.harness_model import HarnessModel

    model = build(block_size=BLOCK, vocab_size=tokenizer.vocab_size, scale=1.0)
    asked = requests(*list(pairs())[:30])
    exact = HarnessModel(loaded(model, tokenizer), 4).loglikelihood(asked, disable_tqdm=True)
    rough = HarnessModel(loaded(model, tokenizer, "bfloat16"), 4)
    found = rough.loglikelihood(asked, disable_tqdm=True)
    assert [x for x, _ in found] != [x for x, _ in exact]
    assert [x for x, _ in found] == pytest.approx([x for x, _ in exact], rel=0.02)
    assert len(rough.generate_until(requests((TEXTS[0], WRITE)), disable_tqdm=True)) == 1


def test_drawn_texts_repeat_themselves(harness, folders):
    settings = {"until": ["b"], "max_gen_toks": 9, "do_sample": True, "temperature": 1.0, "top_p": 0.9}
    asked = requests(*((text[:20], settings) for text in TEXTS[:8]))
    texts = [ours(folders["gpt2"]).generate_until(asked, disable_tqdm=True) for _ in range(2)]
    assert texts[0] == texts[1]
    likeliest = requests(*((text[:20], {**settings, "do_sample": False}) for text in TEXTS[:8]))
    assert texts[0] != ours(folders["gpt2"]).generate_until(likeliest, disable_tqdm=True)


def test_only_tokens_of_the_tokenizer_are_drawn(harness, build, tokenizer, monkeypatch):
    """The model has 64 more, and likes them."""
    from evaluation import harness_model

    known, written = tokenizer.vocab_size, []
    model = build(block_size=BLOCK, vocab_size=known + 64)
    with torch.no_grad():
        model.embedding.weight[known:] *= 50

    def sampled(*arguments):
        written.append(sample_token(*arguments))
        return written[-1]

    monkeypatch.setattr(harness_model, "sample_token", sampled)
    settings = {"until": [], "max_gen_toks": 20, "do_sample": True, "temperature": 1.0}
    adapter = harness_model.HarnessModel(loaded(model, tokenizer), 8)
    adapter.generate_until(requests(*((text[:9], settings) for text in TEXTS[:8])), disable_tqdm=True)
    assert torch.cat(written).max() < known


# --- refusals ---


def test_without_the_harness_a_message(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(
        EvaluationError, match=r"lm_eval is not installed: run `(uv )?pip install lm_eval==0\.4\.13`"
    ):
        harness_process._manager(["piqa"], None)


def test_unknown_tasks_name_their_neighbours(harness, tasks):
    harness_process._manager(zero_shot.TASKS, str(tasks))
    with pytest.raises(EvaluationError) as error:
        # no model: nothing is computed before
        harness_process.evaluate(None, ["hellaswg", "our_choice", "qqqqqqqq"], include_path=str(tasks))
    said = str(error.value)
    assert "hellaswg is no task of lm_eval" in said
    assert "did you mean hellaswag" in said
    assert "did you mean our_choices" in said
    assert "qqqqqqqq is no task" in said
    with pytest.raises(EvaluationError, match="include_path=nowhere "):
        harness_process._manager(["piqa"], "nowhere")


def test_a_task_without_its_data(harness, tasks, tmp_path):
    content = yaml.safe_load((tasks / "whole.yaml").read_text())
    content["dataset_kwargs"]["data_files"]["test"] = str(tmp_path / "nothing.jsonl")
    (tmp_path / "lost.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(EvaluationError, match=r"our_whole .*nothing\.jsonl"):
        harness_process.load_tasks(["our_whole"], str(tmp_path))


def test_what_the_model_cannot_do(harness, folders):
    adapter = ours(folders["gpt2"])
    with pytest.raises(EvaluationError, match="has no token of its own"):
        adapter.loglikelihood(requests(("abc", "")), disable_tqdm=True)
    with pytest.raises(EvaluationError, match=r"continuation .*more than block_size=64"):
        adapter.loglikelihood(requests(("abc", " ".join(TEXTS[:9]))), disable_tqdm=True)
    with pytest.raises(EvaluationError, match=r"num_beams.*not supported"):
        adapter.generate_until(requests(("abc", {"num_beams": 2})), disable_tqdm=True)
    with pytest.raises(EvaluationError, match=r"64 new tokens.*block_size=64"):
        adapter.generate_until(requests(("abc", {"max_gen_toks": 64})), disable_tqdm=True)


def test_refuses_before_the_model_runs(harness, build, tokenizer, tasks):
    model = build(block_size=20, vocab_size=tokenizer.vocab_size)
    model.forward = model.logits_at = model.decode = model.token_losses = None
    with pytest.raises(EvaluationError, match=r"made up: our_writing .*20 new tokens"):
        harness_process.evaluate(loaded(model, tokenizer), NAMES, 4, None, str(tasks))


# --- the process of the harness ---

RIVERS = """
import evaluate  # the harness's package, not the script of this repository
import sys

def measure(doc, results):
    print("a task that prints")
    assert callable(evaluate.load)
    assert "pytest" not in sys.modules
    return {"acc": float(results[0][1])}
"""


@pytest.fixture
def offline(monkeypatch, tmp_path):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


SETTINGS = {
    "which": "best", "tokenizer": None, "end_token": None, "trust_remote_code": False, "device": "cpu",
    "dtype": "float32", "batch_size": 5, "limit": 4,
}  # fmt: skip


def test_the_process_of_the_harness(offline, folders, tasks, tmp_path, monkeypatch):
    """Same scores as here; `evaluate` is Hugging Face's; what a task prints does no harm."""
    for path in tasks.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rivers.py").write_text(RIVERS)
    content = yaml.safe_load((tasks / "last_word.yaml").read_text())
    content |= {"task": "rivers", "metric_list": [content["metric_list"][1]]}
    text = yaml.safe_dump(content) + "process_results: !function rivers.measure\n"
    (tmp_path / "rivers.yaml").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(zero_shot.ROOT))
    wanted = ["our_last_word", "rivers"]
    given = {**SETTINGS, "tasks": wanted, "include_path": str(tmp_path)}
    answer = zero_shot.evaluate({"mine": str(folders["gpt2"])}, **given)
    (mine,) = answer["models"]
    here = models.load(str(folders["gpt2"]))
    assert {key: mine[key] for key in ("name", "dtype")} == {"name": "mine", "dtype": "float32"}
    assert here.facts().items() <= mine.items()
    found = harness_process.evaluate(here, wanted[:1], 5, 4, str(tasks))
    assert mine["results"]["our_last_word"] == found["our_last_word"]
    assert mine["results"]["rivers"]["acc"] == found["our_last_word"]["acc"]
    assert {"lm_eval", "datasets"} <= answer["versions"].keys()


def test_mistakes_come_back_from_the_process(offline):
    """Tasks are looked up before any model is."""
    with pytest.raises(EvaluationError, match=r"^include_path=nothing is not a folder$"):
        zero_shot.evaluate({"a": "nowhere"}, **SETTINGS, tasks=["piqa"], include_path="nothing")
