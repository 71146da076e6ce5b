"""Exported models in transformers, in a process that does not have our code."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import layers
from corpus.file_tokenizer import BpeTokenizer
from evaluation import harness, models
from model import GPT
from models.architecture import ModelConfig
from remote_code import packing
from tests.conftest import documents
from training import pretrained

pytestmark = pytest.mark.slow  # one process, which imports transformers and the harness
ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    "n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 17, "vocab_size": 300, "cf_ladders": 3,
    "cf_depth": 3, "bigbird_block": 2, "bigbird_random": 1, "tie_embeddings": False,
}  # fmt: skip
CONTENT = {"attention": "cattn_relative", "cattn_content": True, "token_shift": True, "position": "none"}
MODELS = {
    "rope": {"position": "rope", "token_shift": True, "n_kv_head": 1},
    "relative": {**CONTENT, "ffn": "cffn_gated", "cf_eval_clip": True},
    "cattn_m": {"attention": "cattn_m", "cattn_scores": "collapsed", "ffn": "cffn_product"},
    "cattn_u": {"attention": "cattn_u", "ffn": "cffn_added", "tie_embeddings": True},
    "synthesizer": {"attention": "synthesizer", "position": "sinusoidal", "norm": "rmsnorm"},
    "bigbird": {"attention": "bigbird", "position": "expe"},
    "mine": {"ffn": "mine"},
}
MINE = '''"""A feed-forward block of a user."""
import torch
from torch import nn

from layers import ladder as fractions
from .protocol import ChannelMixer


class Mine(ChannelMixer):
    def __init__(self, config):
        super().__init__(config)
        from layers.feedforward import MLP

        self.inner, self.keys_of_ladders = MLP(config), fractions.Keys
        self.register_buffer("factor", torch.tensor(0.5), persistent=False)
        # transformers makes a linspace on the CPU, all else on the meta device
        self.scale = nn.Parameter(torch.linspace(1, 2, config.n_embd) * torch.ones(config.n_embd))
        self.register_buffer("shift", torch.linspace(0, 1, config.n_embd), persistent=False)

    def forward(self, x):
        return self.factor * self.inner(x) * (self.scale + self.shift)
'''


def drawn(**keys):
    """A GPT whose every part matters."""
    torch.manual_seed(0)
    model = GPT(ModelConfig(**{**SIZES, **keys})).init_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.mul_(5 if "embedding" not in name or keys.get("tie_embeddings") is None else 1)
        model.train()(torch.randint(300, (2, 17)))  # records the ranges of ladders
    return model.eval()


@pytest.fixture(scope="module")
def with_mine(tmp_path_factory):
    """A copy of the model's code in which a user has added layers/mine.py."""
    root = tmp_path_factory.mktemp("theirs")
    for path in packing.packed()[0].values():
        original = path.split(" ")[1]
        if original.endswith(".py"):
            (root / original).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / original, root / original)
    (root / "layers/mine.py").write_text(MINE)
    registry = (ROOT / "layers/__init__.py").read_text()
    registry = registry.replace(
        "from layers.position", "from layers.mine import Mine\nfrom layers.position"
    )
    (root / "layers/__init__.py").write_text(registry.replace('"mlp": MLP,', '"mlp": MLP, "mine": Mine,'))
    spec = importlib.util.spec_from_file_location("layers.mine", root / "layers/mine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(layers.FFN, "mine", module.Mine)
        patch.setattr(packing, "ROOT", root)
        yield


@pytest.fixture(scope="module")
def tokenizer():
    return BpeTokenizer.train(documents(), 300)


def asked(tokenizer):
    torch.manual_seed(1)
    padded = torch.randint(299, (3, 6))
    return {
        "tokens": torch.randint(299, (2, 17)),
        "prompt": torch.randint(299, (1, 4)),
        "padded": padded,
        "mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 0, 1, 1, 1, 1]]),
        "texts": ["abc dab", "— ü\n\t gab gab  h"],
    }


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory, tokenizer, with_mine):
    """(folder, {name: our model}, what was asked, what the other process found)"""
    pytest.importorskip("lm_eval")
    pytest.importorskip("accelerate")
    root = tmp_path_factory.mktemp("elsewhere")
    ours = {name: drawn(**keys) for name, keys in MODELS.items()}
    for name, model in ours.items():
        source = pretrained.Source(root, model.config, model.state_dict, tokenizer.to_json())
        written = pretrained.export(source, root / "models" / name)
        assert written.packages == {"torch", "numpy", "transformers"}
    torch.save(asked(tokenizer), root / "asked.pt")
    tasks = root / "tasks"
    tasks.mkdir()
    rows = [dict(zip(("context", "word"), t.rsplit(" ", 1), strict=True)) for t in documents()][:12]
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "our_last_word",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tasks / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{context}}",
        "doc_to_target": "{{' '+word}}",
        "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}],
    }
    (tasks / "task.yaml").write_text(yaml.safe_dump(task))
    script = shutil.copy(Path(__file__).with_name("elsewhere.py"), root)
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "home"), "OMP_NUM_THREADS": "1",
        "HF_MODULES_CACHE": str(root / "modules"), "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-I", script, str(root)], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return root, ours, asked(tokenizer), torch.load(root / "found.pt")


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_the_same_numbers_as_ours(elsewhere, name):
    _, ours, given, found = elsewhere
    model, found, tokens = ours[name], found[name], given["tokens"]
    expected = model(tokens)
    assert expected.std() > 0.05
    torch.testing.assert_close(found["logits"], expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(found["loss"], model(tokens[:, :-1], tokens[:, 1:]))
    assert found["sizes"] == (300, 17)
    assert found["half"].dtype == torch.bfloat16
    torch.testing.assert_close(found["half"].float(), expected, atol=0.15 * expected.std(), rtol=0)
    assert found["gradient"] > 0


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_the_same_texts_as_ours(elsewhere, name):
    """Cached, without a cache, and in rows of a batch with padding before the text."""
    _, ours, given, found = elsewhere
    model, found = ours[name], found[name]

    def written(prompt):
        return list(model.generate(prompt.tolist(), 8, temperature=0))

    alone = written(given["prompt"][0])
    rows = [written(row[mask.bool()]) for row, mask in zip(given["padded"], given["mask"], strict=True)]
    assert len(set(alone)) > 2 or name == "cattn_u"
    for cached in (True, False):
        assert found["alone", cached][0, 4:].tolist() == alone
        assert found["padded", cached][:, 6:].tolist() == rows
    assert torch.equal(found["beams", True], found["beams", False])
    assert found["half written"].shape == (3, 14)
    for row, mask, logits in zip(given["padded"], given["mask"], found["padded logits"], strict=True):
        torch.testing.assert_close(logits[mask.bool()], model(row[mask.bool()][None])[0], atol=1e-5, rtol=0)
    assert found["unconditional"][0, 0] == 299
    assert found["ends"] == (299, 299)


def test_each_copy_of_the_code_has_its_own_operators(elsewhere):
    """Registering an operator again breaks the first one."""
    spaces = {elsewhere[3][name]["operators"] for name in MODELS}
    assert len(spaces) == len(MODELS)
    assert "cofrgenet" not in spaces


def test_the_tokenizer(elsewhere, tokenizer):
    _, _, given, found = elsewhere
    ids = [tokenizer.encode(text) for text in given["texts"]]
    assert found["tokenizer"]["ids"] == ids
    assert found["tokenizer"]["end"] == tokenizer.end_of_text
    assert found["tokenizer"]["batch"].keys() == {"input_ids", "attention_mask"}
    length = max(map(len, ids))
    assert found["tokenizer"]["batch"]["input_ids"].tolist() == [[299] * (length - len(x)) + x for x in ids]


@torch.no_grad()
def test_saved_by_transformers_and_read_here(elsewhere):
    root, ours, given, found = elsewhere
    name = sorted(MODELS)[0]
    expected = ours[name](given["tokens"])
    assert torch.equal(found["again"], found[name]["logits"])
    assert (root / "saved" / "modeling_cofrgenet.py").is_file()
    back, tokenizer = pretrained.load(root / "saved")
    assert torch.equal(back(given["tokens"]), expected)
    assert tokenizer.encode("abc") == pretrained.load(root / "models" / name)[1].encode("abc")
    assert 0.01 < found["drawn"] < 0.03


def test_scores_of_the_harness_are_ours(elsewhere):
    root, _, _, found = elsewhere
    loaded = models.load(str(root / "models" / sorted(MODELS)[0]))
    ours = harness.evaluate(loaded, ["our_last_word"], include_path=str(root / "tasks"))
    assert ours["our_last_word"]["perplexity"] == pytest.approx(found["perplexity"], rel=1e-5)
