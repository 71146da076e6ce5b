"""Models to be measured, and texts for them."""

import numpy as np
import pytest
import torch

from corpus.tokenizer import BytesTokenizer
from evaluation.models import Loaded


@pytest.fixture
def loaded(build):
    """loaded(**keys) -> a tiny model of bytes, block_size 17, as `load` would return it."""

    def make(**keys):
        model = build(vocab_size=257, **keys).eval()
        tokenizer = BytesTokenizer()
        return Loaded(
            name="tiny",
            path=None,
            model=model,
            tokenizer=tokenizer,
            config=model.config,
            end_of_text=tokenizer.end_of_text,
            device=torch.device("cpu"),
            dtype="float32",
        )

    return make


@pytest.fixture
def stream():
    """stream(n) -> end-of-text and n random bytes"""

    def draw(n, seed=0):
        random = np.random.Generator(np.random.PCG64(seed))
        return np.array([256, *random.integers(32, 127, n)], dtype=np.int64)

    return draw
