"""Models that transformers reads for us, against loops over tokens with that library alone."""

import json
import math
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
import torch
import yaml

import evaluate
from corpus import DataError
from corpus.binary import prepare
from corpus.tokenizer import Gpt2Tokenizer
from evaluation import EvaluationError, extrapolation, foreign, gpt2_protocol, models, recall, texts
from evaluation import harness as harness_process
from evaluation.perplexity import check_layout, perplexity
from tests.evaluation.foreign_models import BLOCK, BOTH, KINDS, TEXTS, byte_level, save, sentencepiece
from training.checkpoint import CheckpointError

transformers = pytest.importorskip("transformers")

# more bytes than characters, spaces at the beginning and at the end, two ways to write one character
AWKWARD = [" Zoë's  café:\n\n\tcafe\u0301 😀 日本 ", "<s></s><|end|> x", "ab", "🙂", "cafe\u0301"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """folders(kind) -> folder of a tiny random model and its tokenizer"""
    made = {}

    def folder(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("models") / kind
            save(made[kind], kind)
        return made[kind]

    return folder


@pytest.fixture
def copy(folders, tmp_path):
    """copy(kind) -> a folder of a model that a test may damage"""

    def copied(kind):
        return shutil.copytree(folders(kind), tmp_path / kind)

    return copied


def theirs(folder):
    load = {"dtype": torch.float32, "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **load).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def first_and_last(tokenizer):
    """(the token before a text, the token between texts)"""
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return eos if bos is None else bos, eos


@torch.no_grad()
def nats_of(model, stream, window, stride, before):
    """The summed nats of all tokens but the first, each from a forward pass of its own.

    before: the token that precedes each window that does not begin with it; None: no token does.
    """
    nats = []
    for place in range(1, len(stream)):
        begin = 0
        while begin + window <= place:
            begin += stride
        seen = stream[begin:place]
        if before is not None and seen[0] != before:
            seen = [before, *seen]
        row = model(torch.tensor([seen])).logits[0, -1].double()
        nats.append(-row.log_softmax(-1)[stream[place]].item())
    return math.fsum(nats)


def of_documents(found, join="end_of_text"):
    return texts.Documents("made up", join, None, {}, found)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_loop_over_tokens(folders, kind):
    model, tokenizer = theirs(folders(kind))
    loaded = models.load(str(folders(kind)))
    if kind == "mamba":
        assert loaded.block_size == foreign.NO_POSITIONS
    else:
        assert loaded.block_size == BLOCK
    assert loaded.parameters == sum(p.numel() for p in model.parameters())
    start, end = first_and_last(tokenizer)
    before = start if kind in ("mistral", "gemma", "opt") else None
    documents = [*TEXTS[:2], AWKWARD[0]]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in documents]
    size = sum(len(text.encode()) for text in documents)
    joined = [[start, *ids[0], end, *ids[1], end, *ids[2]]]
    for join, expected in (("end_of_text", joined), ("separate", [[start, *each] for each in ids])):
        streams, sizes = of_documents(documents, join).sized(loaded.tokenizer)
        assert [stream.tolist() for stream in streams] == expected
        found = perplexity(loaded, streams, 10, BLOCK, batch_size=3, sizes=sizes)
        nats = math.fsum(nats_of(model, stream, BLOCK, 10, before) for stream in expected)
        assert found["tokens"] == sum(len(stream) - 1 for stream in expected)
        assert found["loss"] == pytest.approx(nats / found["tokens"], abs=2e-5)
        assert found["bytes"] == size
        assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_large_logits_are_computed_in_parts(folders, monkeypatch):
    loaded = models.load(str(folders("mistral")))
    streams = of_documents(TEXTS[:5], "separate").streams(loaded.tokenizer)
    whole = perplexity(loaded, streams, 10)
    monkeypatch.setattr(foreign, "LOGITS_BYTES", 1)
    assert perplexity(loaded, streams, 10)["loss"] == pytest.approx(whole["loss"], abs=1e-6)


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma"])
def test_bytes_are_those_of_the_text(folders, kind):
    loaded = models.load(str(folders(kind)))
    library = transformers.AutoTokenizer.from_pretrained(folders(kind))
    for text, (ids, sizes) in zip(AWKWARD, loaded.tokenizer.encode_sized(AWKWARD), strict=True):
        assert ids == library(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert len(ids) == len(sizes)
        assert sizes.sum() == len(text.encode())
        # what stands before each token, where it ends with a whole character as it was
        compared = 0
        for count in range(1, len(ids)):
            begun = library.decode(ids[:count])
            begun = begun.removeprefix(" ") if kind == "mistral" else begun
            if begun and text.startswith(begun):  # Mistral's own space shares the first character
                assert sizes[:count].sum() == len(begun.encode())
                compared += 1
        assert compared > 10 or len(text) < 10
    text = of_documents([TEXTS[0]])
    (stream,), (size,) = text.sized(loaded.tokenizer, max_tokens=3)
    assert len(stream) == 4
    begun = library.decode(stream[1:]).removeprefix(" ")
    assert perplexity(loaded, [stream], 2, 4, sizes=[size])["bytes"] == size == len(begun)
    assert TEXTS[0].startswith(begun)
    assert begun != TEXTS[0]


def test_special_tokens_in_a_text_are_text(folders):
    for kind in ("qwen2", "mistral"):
        tokenizer = models.open_model(str(folders(kind))).tokenizer
        ids = tokenizer.encode("a </s> <s> <|end|>")
        assert not {tokenizer.start_of_text, tokenizer.end_of_text} & {*ids}


def test_prepared_text_of_another_tokenizer(folders, tmp_path):
    prepare(lambda: iter(TEXTS), {"made": "up"}, "bytes", tmp_path / "bytes", 0.5, workers=1)
    text = texts.open_text(str(tmp_path / "bytes" / "val.bin"))
    tokenizer = models.open_model(str(folders("mistral"))).tokenizer
    (stream,), (size,) = text.sized(tokenizer)
    whole = text.dataset.tokenizer().decode(text.dataset.tokens)
    assert size == len(whole.encode())
    assert (stream == tokenizer.end_of_text).sum() == (text.dataset.tokens == 256).sum() > 1
    assert stream[0] == tokenizer.start_of_text != tokenizer.end_of_text
    decoded = [
        tokenizer.library.decode(stream[1:].tolist()).removeprefix(" ")
        for stream in text.streams(tokenizer, "separate")
    ]
    assert "".join(decoded) == whole


# --- the measures ---


def test_a_table_with_ours(folders, run, tmp_path, capsys):
    folder, _ = run("ours", "--max_iters=2")
    (tmp_path / "text.txt").write_text("".join(AWKWARD) + TEXTS[0])
    names = [str(folder), str(folders("qwen2")), str(folders("mistral"))]
    keys = [f"--texts={tmp_path}/text.txt", "--window=16", f"--json={tmp_path}/numbers.json"]
    evaluate.main([*names, *keys, "--device=cpu"])
    said = capsys.readouterr().out
    assert "in bits per byte, because their tokenizers differ" in said
    found = json.loads((tmp_path / "numbers.json").read_text())["models"]
    assert [model["name"] for model in found] == ["ours", "qwen2", "mistral"]
    assert [model["model"] for model in found] == ["gpt", "qwen2", "mistral"]
    sizes = {model["results"][f"{tmp_path}/text.txt"]["bytes"] for model in found}
    assert sizes == {(tmp_path / "text.txt").stat().st_size}
    (tmp_path / "long.txt").write_text(" ".join(TEXTS))
    keys = ["--task=extrapolation", "--lengths=1,2", f"--texts={tmp_path}/long.txt", "--device=cpu"]
    evaluate.main([*names, *keys])
    said = capsys.readouterr().out
    assert [said.count(f"| {name} ") for name in ("ours", "qwen2", "mistral")] == [3, 3, 3]
    assert "refused: ours: 64 tokens do not fit" in said
    assert "no model is marked as the best, because their tokenizers differ" in said


def test_extrapolation(folders):
    """Of learned positions no longer text is seen; the others equal perplexity in windows side by side."""
    long = of_documents([" ".join(TEXTS)], "separate")
    for kind in ("qwen2", "opt"):
        loaded = models.load(str(folders(kind)))
        found = extrapolation.extrapolate(loaded, long.streams(loaded.tokenizer), (1, 2))
        assert found["train_length"] == BLOCK
        assert [each["factor"] for each in found["lengths"]] == ([1, 2] if kind == "qwen2" else [1])
        assert list(found["refused"]) == ([] if kind == "qwen2" else [2])
        if kind == "opt":
            with pytest.raises(EvaluationError, match=f"window={BLOCK + 1} does not fit into block_size"):
                check_layout(kind, loaded.config, 5, BLOCK + 1)
        model, _ = theirs(folders(kind))
        (stream,) = long.streams(loaded.tokenizer)
        stream = stream[: found["tokens"] + 1].tolist()
        before = stream[0] if kind == "opt" else None
        starts = range(0, 4 * BLOCK, BLOCK)
        nats = [nats_of(model, stream[at : at + BLOCK + 1], BLOCK + 1, 1, before) for at in starts]
        parts = [np.array(stream[at : at + BLOCK + 1]) for at in starts]
        rows = torch.tensor(np.stack(parts))
        losses = loaded.model.token_losses(rows[:, :-1], rows[:, 1:]).sum(1)
        assert losses.tolist() == pytest.approx(nats, rel=1e-4)


def test_recall_has_the_loss_of_perplexity(folders):
    loaded = models.load(str(folders("mistral")))
    streams = of_documents(TEXTS[:5]).streams(loaded.tokenizer)
    found, expected = recall.recall(loaded, streams, 10), perplexity(loaded, streams, 10)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert sum(part["tokens"] for part in found["repeats"]) == expected["tokens"]


def test_final_words(folders):
    """The last word with its space, and no space of the tokenizer's own."""
    model, tokenizer = theirs(folders("mistral"))
    examples = ["ab ba cab", "dad had a bag"]
    expected = []
    for text in examples:
        whole = tokenizer(text)["input_ids"]
        count = len(tokenizer(text.rpartition(" ")[0])["input_ids"])
        scores = model(torch.tensor([whole[:-1]])).logits[0].log_softmax(-1)
        expected.append(-sum(scores[place - 1, whole[place]].item() for place in range(count, len(whole))))
    found = gpt2_protocol.final_words(models.load(str(folders("mistral"))), examples, 2)
    assert found["loss"] == pytest.approx(sum(expected) / 2, rel=1e-5)


def test_zero_shot_scores_are_those_of_hf(folders, tmp_path, monkeypatch):
    harness = pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    import datasets
    import lm_eval.evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("DISABLE_MULTIPROC", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda results: None)
    rows = [{"q": TEXTS[n][:20], "options": [TEXTS[n + k][:7] for k in (1, 2)], "a": 0} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "ours", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
        "dataset_kwargs": {"data_files": {"test": f"{tmp_path}/rows.jsonl"}}, "doc_to_text": "{{q}}",
        "doc_to_choice": "{{options}}", "doc_to_target": "a",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(task))
    for kind in ("qwen2", "mistral"):
        expected = harness.simple_evaluate(
            HFLM(str(folders(kind)), device="cpu", dtype="float32", batch_size=3),
            tasks=["ours"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            log_samples=False,
        )["results"]["ours"]
        found = harness_process.evaluate(models.load(str(folders(kind))), ["ours"], 3, None, str(tmp_path))
        assert found["ours"]["acc"] == expected["acc,none"]
        assert found["ours"]["acc_stderr"] == expected["acc_stderr,none"] > 0


def test_zero_shot_without_accelerate(folders, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.delitem(sys.modules, "lm_eval.models.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(EvaluationError, match=r"need accelerate: run `(uv )?pip install 'lm_eval\[hf\]="):
        harness_process._model(models.load(str(folders("qwen2"))), 1)


# --- which models go this way ---


def test_what_we_read_ourselves_stays_ours(folders, copy, run, tmp_path, monkeypatch):
    from tests.training.transformers_models import drawn, gpt2, llama

    monkeypatch.chdir(tmp_path)
    folder, _ = run("ours", "--max_iters=2")
    assert not foreign.takes(str(folder))
    assert not foreign.takes("gpt2")
    assert not foreign.takes("ours/typo")  # `ours` is a folder here
    assert not foreign.takes("x" * 5000)
    assert foreign.takes(str(folders("qwen2")))
    drawn(llama(vocab_size=500)).save_pretrained(tmp_path / "llama")
    assert not foreign.takes(str(tmp_path / "llama"))
    end = {"eos_token": "<|endoftext|>"}
    library = tokenizers.Tokenizer.from_str(byte_level().to_str().replace("<|end|>", "<|endoftext|>"))
    library.normalizer = None
    library.save(str(tmp_path / "llama" / "tokenizer.json"))
    assert not foreign.takes(str(tmp_path / "llama"))
    # a tokenizer that puts <s> before a text, or another config than we read
    transformers.PreTrainedTokenizerFast(tokenizer_object=sentencepiece(), **BOTH).save_pretrained("llama")
    assert foreign.takes(str(tmp_path / "llama"))
    assert not foreign.takes(str(tmp_path / "llama"), "bytes")
    content = json.loads((tmp_path / "llama" / "tokenizer.json").read_text())
    (tmp_path / "llama" / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    assert not foreign.takes(str(tmp_path / "llama"))
    assert not models.load("llama").tokenizer.exact
    drawn(gpt2(scale_attn_by_inverse_layer_idx=True)).save_pretrained(tmp_path / "gpt2_scaled")
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **end).save_pretrained("gpt2_scaled")
    assert foreign.takes("gpt2_scaled")


def test_tables_of_equal_tokenizers_are_equal(tmp_path):
    """GPT-2's tokenizer in a folder of transformers is ours."""
    from training.hugging_face_tokenizer import tokenizer_files

    own = Gpt2Tokenizer()
    for name, content in tokenizer_files(own, 32, own.vocab_size).items():
        (tmp_path / name).write_text(content)
    other = foreign.file_tokenizer(transformers.AutoTokenizer.from_pretrained(tmp_path), "gpt2")
    assert own.same_tokens(other)
    assert other.same_tokens(own)
    assert other.encode(AWKWARD[0]) == own.encode(AWKWARD[0])
    assert (other.start_of_text, other.end_of_text) == (own.end_of_text, own.end_of_text)
    assert not other.adds_tokens


REMOTE = """
from transformers import PretrainedConfig, Qwen2Config, Qwen2ForCausalLM
class Config(Qwen2Config):
    model_type = "tiny_remote"
class Model(Qwen2ForCausalLM):
    config_class = Config
"""


def test_remote_code_runs_where_it_is_asked_for(copy, folders, modules_cache):
    folder = copy("qwen2")
    content = json.loads((folder / "config.json").read_text())
    content |= {"model_type": "tiny_remote", "architectures": ["Model"]}
    content["auto_map"] = {"AutoConfig": "remote.Config", "AutoModelForCausalLM": "remote.Model"}
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "remote.py").write_text(REMOTE)
    with pytest.raises(CheckpointError, match=r"needs Python code .*--trust_remote_code=True"):
        models.open_model(str(folder))
    loaded = models.load(str(folder), trust_remote_code=True)
    tokens = torch.tensor([loaded.tokenizer.encode(TEXTS[0])])
    assert torch.equal(loaded.model(tokens), models.load(str(folders("qwen2"))).model(tokens))


def test_models_of_flash_linear_attention(copy, monkeypatch, tmp_path):
    """The package `fla` tells transformers of its models when it is imported."""
    folder = copy("qwen2")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"model_type": "tiny_fla"}))
    with pytest.raises(CheckpointError, match=r"cannot be read by transformers: .*tiny_fla"):
        models.open_model(str(folder))
    (tmp_path / "fla.py").write_text(
        REMOTE.replace("tiny_remote", "tiny_fla")
        + "from transformers import AutoConfig, AutoModelForCausalLM\n"
        + "AutoConfig.register('tiny_fla', Config)\nAutoModelForCausalLM.register(Config, Model)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert models.load(str(folder)).config.model == "tiny_fla"
    monkeypatch.delitem(sys.modules, "fla")
    transformers.CONFIG_MAPPING._extra_content.pop("tiny_fla")


def test_names_of_the_hub(folders, monkeypatch):
    import huggingface_hub as hub

    asked = []

    def download(name, allow_patterns, local_files_only):
        asked.append((name, local_files_only, "*.py" in allow_patterns))
        if name == "nobody/half":
            raise OSError("no such cache")
        return str(folders("qwen2"))

    def one_file(name, file, local_files_only=False):
        if name == "nobody/nothing":
            raise hub.errors.LocalEntryNotFoundError("no such cache")
        return str(folders("qwen2") / file)

    def refused(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr(hub, "hf_hub_download", one_file)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_, **__: None)
    opened = models.open_model("nobody/qwen2")
    assert (opened.name, str(opened.source.path)) == ("qwen2", "nobody/qwen2")
    assert opened.load().model.check_length(BLOCK) is None
    monkeypatch.setattr(hub, "get_hf_file_metadata", refused)
    assert models.open_model("nobody/qwen2", trust_remote_code=True).config == opened.config
    with pytest.raises(CheckpointError, match=r"\(no network\).*hf download nobody/half"):
        models.open_model("nobody/half")
    with pytest.raises(
        CheckpointError, match=r"(?s)nothing does not exist: .*\(no network\).*hf download nobody/noth"
    ):
        models.open_model("nobody/nothing")
    assert asked == [
        ("nobody/qwen2", False, False),
        ("nobody/qwen2", True, True),
        ("nobody/half", True, False),
    ]


# --- refusals, before work ---


def test_what_is_refused(copy, folders, monkeypatch, tmp_path):
    folder = copy("qwen2")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors .*safetensors files only"):
        models.open_model(str(folder))

    folder = copy("mistral")
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"vocab_size": 100}))
    with pytest.raises(EvaluationError, match=r"mistral: its tokenizer has 330 tokens, the model only 100"):
        models.open_model(str(folder))

    folder = copy("olmo")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(DataError, match="olmo has no tokenizer"):
        models.open_model(str(folder))
    assert models.open_model(str(folder), tokenizer="bytes").tokenizer.kind == "bytes"
    with pytest.raises(DataError, match=r"tokenizer of its own, and --tokenizer=bytes"):
        models.open_model(str(folders("olmo")), tokenizer="bytes")

    folder = copy("phi")
    content = json.loads((folder / "tokenizer_config.json").read_text())
    none = {"bos_token": None, "eos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(content | none))
    with pytest.raises(DataError, match="no bos_token and no eos_token"):
        models.open_model(str(folder))

    folder = copy("gemma")
    tensors = dict(transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict())
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    from safetensors.torch import save_file

    tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"gemma lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        models.load(str(folder))

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        EvaluationError, match=r"transformers is not installed: run `(uv )?pip install transformers`"
    ):
        models.open_model(str(folders("qwen2")))


def test_models_that_are_not_causal(tmp_path):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    library = byte_level()
    config = transformers.BertConfig(vocab_size=300, initializer_range=0.5, **small)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path / "bert")
    transformers.BartConfig(vocab_size=300).save_pretrained(tmp_path / "bart")
    (tmp_path / "bart" / "model.safetensors").touch()
    for name in ("bert", "bart"):
        special = {"eos_token": "<|end|>"}
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **special)
        fast.save_pretrained(tmp_path / name)
    with pytest.raises(EvaluationError, match=r"bert: .*depends on tokens after it"):
        models.load(str(tmp_path / "bert"))
    with pytest.raises(EvaluationError, match=r"bart: .*no causal language model of model_type='bart'"):
        models.open_model(str(tmp_path / "bart"))


def test_characters_without_a_token():
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>"))
    keys = {"unk_token": "<unk>", "eos_token": "</s>"}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **keys)
    tokenizer = foreign.file_tokenizer(fast, "tiny")
    assert tokenizer.encode("aa") == [1, 1]
    with pytest.raises(DataError, match=r"no token for 'é' \(after 'aa'\)"):
        tokenizer.encode("aaéa")
    with pytest.raises(DataError, match="does not say which characters"):
        foreign.file_tokenizer(SimpleNamespace(is_fast=False), "slow")
