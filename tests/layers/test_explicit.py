"""The explicit solution against numbers computed by hand and against naive Bayes."""

import math

import pytest
import torch

from layers.explicit import attention, decoder, decoder_priming, offset

SEQUENCE = [0, 1, 2, 0, 1, 1, 2, 0, 0, 1, 2, 2, 0, 1, 0, 2, 1, 0, 1, 2, 0, 2, 1, 1, 0]


def counted(inputs, targets, width):
    one_hot = torch.eye(width, dtype=torch.float64)
    return inputs.T @ one_hot[targets]


def two_inputs():
    """(inputs [23, 6], targets [23]): one-hot vectors of the token before and of the one before that."""
    tokens, one_hot = torch.tensor(SEQUENCE), torch.eye(3, dtype=torch.float64)
    return torch.cat((one_hot[tokens[1:-1]], one_hot[tokens[:-2]]), 1), tokens[2:]


def test_one_input_gives_the_conditional_distribution():
    x = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 1])
    y = torch.tensor([0, 1, 1, 2, 2, 0, 1, 2, 2, 0])
    F = counted(torch.eye(3, dtype=torch.float64)[x], y, 3)
    assert F.tolist() == [[1, 2, 0], [1, 0, 2], [1, 1, 2]]
    torch.testing.assert_close(decoder(F, 1).softmax(1), F / F.sum(1, keepdim=True), atol=1e-11, rtol=0)


@pytest.mark.parametrize("factor", [1, 7])
def test_two_inputs_give_naive_bayes(factor):
    inputs, targets = two_inputs()
    F = factor * counted(inputs, targets, 3)
    assert (F / factor).tolist() == [[1, 4, 2], [3, 2, 4], [4, 2, 1], [1, 4, 3], [4, 1, 3], [3, 3, 1]]
    found = (inputs @ decoder(F, 2)).log_softmax(1)
    prior = F[:3].sum(0) / F[:3].sum()
    evidence = (F / F[:3].sum(0)).log()
    naive_bayes = (inputs @ evidence + prior.log()).log_softmax(1)
    torch.testing.assert_close(found, naive_bayes, atol=1e-13, rtol=0)
    nats = -found[torch.arange(len(targets)), targets].mean()
    assert nats.item() == pytest.approx(0.868787372, abs=1e-9)


def test_temperature_weakens_the_evidence_and_not_the_prior():
    inputs, targets = two_inputs()
    F = counted(inputs, targets, 3)
    weakest = (inputs @ decoder(F, 2, temperature=1e-12)).softmax(1)
    prior = F.sum(0) / F.sum()
    torch.testing.assert_close(weakest, prior.expand_as(weakest), atol=1e-10, rtol=0)
    half = decoder(F, 2, temperature=0.5)
    scores = 0.5 * (F / F.sum(0)).log() + F.sum(0).log() / 2
    torch.testing.assert_close(half, scores)


def test_the_floor_stands_for_pairs_that_never_occurred():
    F = torch.tensor([[4.0, 0.0], [2.0, 1.0]], dtype=torch.float64)
    U = decoder(F, 1, floor=0.1)
    torch.testing.assert_close(U[0], torch.tensor([4.0, 0.4], dtype=torch.float64).log())
    assert decoder(F, 1)[0, 1].item() == pytest.approx(math.log(4e-12))
    with pytest.raises(ValueError, match="nothing was counted"):
        decoder(torch.zeros(2, 2), 1)


def test_an_attention_needs_two_slots_and_positive_sums():
    with pytest.raises(ValueError, match=r"\b1 slot\b"):
        attention(torch.ones(1, 1))
    with pytest.raises(ValueError, match=r"not positive \(the least is -1"):
        attention(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))


def test_the_numbers_of_two_slots():
    F = torch.tensor([[15.804646, 15.770880], [54.808607, 52.788060]], dtype=torch.float64)
    expected = torch.tensor([[4.644953, 4.629744], [5.888496, 5.837864]], dtype=torch.float64)
    torch.testing.assert_close(attention(F), expected, atol=1e-6, rtol=0)
    assert offset(2, 6) == pytest.approx(5.375278408)
    assert decoder_priming(2) == pytest.approx(1.386294, abs=1e-6)
