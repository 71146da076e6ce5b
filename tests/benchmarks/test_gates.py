"""Models that compute wrong numbers are not timed."""

import pytest
import torch

from benchmarks import decoding, training_step
from model import GPT

CPU = torch.device("cpu")


def test_wrong_models_are_not_timed(tiny, monkeypatch):
    step = training_step.StepOptions(2, "float32", True, False)
    decode = decoding.DecodeOptions(2, "float32", False)
    monkeypatch.setattr(training_step, "compiled_for_training", lambda model, **how: model)
    assert training_step.gate(tiny(), step, CPU) == decoding.gate(tiny(), decode, CPU) == {}
    monkeypatch.setattr(
        training_step, "compiled_for_training", lambda model, **how: lambda *given: 1.01 * model(*given)
    )
    with pytest.raises(ValueError, match=r"wrong loss: 0\.01 away"):
        training_step.gate(tiny(), step, CPU)
    monkeypatch.setattr(
        training_step,
        "compiled_for_training",
        lambda model, **how: lambda *given: (loss := model(*given)) + 0.1 * (loss - loss.detach()),
    )
    with pytest.raises(ValueError, match=r"wrong gradient: 0\.1 away"):
        training_step.gate(tiny(), step, CPU)
    right = GPT.decode
    monkeypatch.setattr(GPT, "decode", lambda model, new, cache: right(model, new, model.new_cache(2)))
    with pytest.raises(ValueError, match="wrong logits"):
        decoding.gate(tiny(), decode, CPU)
