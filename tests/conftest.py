"""What several tests share."""

import pytest
import torch

from model import GPT, ModelConfig


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors: threads cost more than they bring, and one thread repeats itself to the bit."""
    torch.set_num_threads(1)


@pytest.fixture
def tiny():
    """tiny(**keys) -> a ModelConfig of awkward sizes."""

    def build(**keys):
        sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "block_size": 17, "vocab_size": 100}
        return ModelConfig(**{**sizes, "cf_ladders": 3, "cf_depth": 3, **keys})

    return build


@pytest.fixture
def build(tiny):
    """build(**keys) -> a tiny GPT with weights large enough that every part matters."""

    def make(seed=0, scale=5.0, **keys):
        torch.manual_seed(seed)
        model = GPT(tiny(**keys)).init_weights()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2 and "embedding" not in name:
                    parameter.mul_(scale)
        return model

    return make
