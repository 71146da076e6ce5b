"""Models that compute wrong numbers are not timed."""

import pytest
import torch

from benchmarks import decoding, measurements, training_step
from benchmarks.measurements import Timing
from decoding.decoder import Decoder
from model import GPT

CPU = torch.device("cpu")


def test_wrong_models_are_not_timed(tiny, monkeypatch):
    def compile_as(changed):
        def compile_parts(model):
            right = model.loss
            model.loss = lambda *inputs: changed(right(*inputs))

        monkeypatch.setattr(training_step, "compile_parts", compile_parts)

    step = training_step.StepOptions(2, "float32", True, False)
    decode = decoding.DecodeOptions(2, "float32", False)
    compile_as(lambda loss: loss)
    assert training_step.gate(tiny(), step, CPU) == decoding.gate(tiny(), decode, CPU) == {}
    compile_as(lambda loss: 1.01 * loss)
    with pytest.raises(ValueError, match=r"wrong loss: 0\.01 away"):
        training_step.gate(tiny(), step, CPU)
    compile_as(lambda loss: loss + 0.1 * (loss - loss.detach()))
    with pytest.raises(ValueError, match=r"wrong gradient: 0\.1 away"):
        training_step.gate(tiny(), step, CPU)
    right = GPT.decode
    monkeypatch.setattr(GPT, "decode", lambda model, new, cache: right(model, new, model.new_cache(2)))
    (told,) = decoding.gate(tiny(), decode, CPU).values()
    assert told.startswith("wrong logits of a step")
    found = measurements.decode(tiny(), decode, Timing(1, 0.0), False, CPU)
    with pytest.raises(ValueError, match="wrong logits"):
        next(found["step"]())
    assert "prefill" in found


def test_one_way_to_decode_that_breaks_costs_no_other(tiny, monkeypatch):
    def broken(model, tokens):
        raise NotImplementedError("no such kernel\nmore")

    ways = {"step": None, "fused step": broken}
    monkeypatch.setattr(decoding, "backends", lambda *_: ways)
    monkeypatch.setattr(decoding, "Decoder", lambda model, backend: backend or Decoder(model))
    found = measurements.warm_decode(tiny(), decoding.DecodeOptions(2, "float32", False), CPU)
    assert list(found["compile"]()["refused"]) == ["fused step"]
