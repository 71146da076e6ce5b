"""Accuracy on MQAR against a count, token by token."""

import numpy as np
import pytest
import torch

from corpus.mqar import MqarDataset
from corpus.tokenizer import MqarTokenizer
from evaluation import report
from evaluation.models import Loaded
from evaluation.mqar import mqar
from tests.corpus.test_mqar import naive_answers, prepared


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = prepared(tmp_path_factory.mktemp("mqar") / "set")
    return MqarDataset(folder, "val", 32)


def loaded(model):
    tokenizer, cpu = MqarTokenizer(40), torch.device("cpu")
    return Loaded("tiny", None, model.eval(), tokenizer, model.config, 0, cpu, "float32")


@torch.no_grad()
def test_equal_to_a_count(build, rows):
    tiny = loaded(build(vocab_size=40, block_size=40, tie_embeddings=False))
    found = mqar(tiny, rows, batch_size=7)
    counts = {}
    for row in rows.tokens.reshape(-1, 32).astype(np.int64):
        answers = np.flatnonzero(naive_answers(row.tolist()))
        for t in answers:
            logits = tiny.model(torch.tensor([[0, *row[:t]]]))[0, -1]
            right = all(logits[row[t]] > logits[v] for v in range(40) if v != row[t])
            counts.setdefault(len(answers), []).append((right, -logits.log_softmax(-1)[row[t]].item()))
    assert [part["pairs"] for part in found["by_pairs"]] == sorted(counts) == [1, 3, 8]
    for part, number in zip(found["by_pairs"], sorted(counts), strict=True):
        right, nats = zip(*counts[number], strict=True)
        assert (part["rows"], part["answers"]) == (10, 10 * number)
        assert part["accuracy"] == sum(right) / len(right)
        assert part["loss"] == pytest.approx(np.mean(nats), rel=1e-5)
    every = [one for part in counts.values() for one in part]
    assert 0 < found["accuracy"] == sum(right for right, _ in every) / len(every)
    assert (found["rows"], found["answers"]) == (30, len(every))
    assert found["loss"] == pytest.approx(np.mean([nats for _, nats in every]), rel=1e-5)


class Perfect(torch.nn.Module):
    """Knows the answers, but to the first `wrong` of a batch."""

    def __init__(self, rows, wrong):
        super().__init__()
        self.config, self.rows, self.wrong = None, rows, wrong

    def logits_at(self, tokens, wanted):
        targets = torch.cat((tokens[:, 1:], torch.zeros_like(tokens[:, :1])), 1)[wanted]
        found = torch.nn.functional.one_hot(targets, 40).float()
        found[: self.wrong] = found[: self.wrong].roll(1, -1)
        return found


@pytest.mark.parametrize("wrong", [0, 5])
def test_a_model_that_knows_the_answers(rows, wrong):
    inside = MqarDataset(rows.folder, "val", 32)
    inside.tokens = rows.tokens.reshape(-1, 32)[rows.tokens.reshape(-1, 32)[:, -1] == 0].reshape(-1)
    inside.n_windows = len(inside.tokens) // 32
    found = mqar(loaded(Perfect(inside, wrong)), inside, batch_size=100)
    assert found["accuracy"] == 1 - wrong / found["answers"]


def test_the_best_accuracy_is_the_highest():
    def result(accuracy, loss):
        numbers = {"accuracy": accuracy, "loss": loss, "answers": 40, "rows": 10}
        return numbers | {"by_pairs": [numbers | {"pairs": 4}]}

    said = report.mqar({"a": result(0.5, 2.0), "b": result(0.75, 1.0)}, papers=False)
    assert said.count("**75.00%**") == said.count("**1.0000**") == 2
    assert said.count("50.00%") == 2
    assert "answers: 40 with 4 pairs; an answer is right if no other token is likelier" in said
