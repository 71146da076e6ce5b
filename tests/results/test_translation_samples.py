"""Translations side by side, and decoding with and without a cache, of tiny models."""

import dataclasses

import pytest
import torch

from models.architecture import ModelConfig
from models.kinds import built
from results.translation import decoding, samples

TEXT = """--- best.pt, greedy, /data/libreoffice/val.bin ---

source:      a
translation: wrong
reference:   A

--- best.pt, 5 beams, length_penalty 1, /data/libreoffice/val.bin ---

"""


def test_ten_evenly_spaced_pairs_of_the_beams(tmp_path, monkeypatch):
    file = tmp_path / "translations.txt"
    pairs = [f"source:      s{n}: x\ntranslation: t{n} <b>\nreference:   r{n}" for n in range(25)]
    file.write_text(TEXT + "\n\n".join(pairs) + "\n\n")
    found = samples.translated(file)
    assert found[3] == {"source": "s3: x", "translation": "t3 <b>", "reference": "r3"}
    text = samples.page({"dense": found, "full": found})
    assert "One in 2 of 25" in text
    assert text.count("| source |") == 10
    assert "| source | s18: x |" in text
    assert r"| full | t18 \<b\> |" in text
    file.write_text(TEXT.partition("--- best.pt, 5")[0])
    with pytest.raises(SystemExit, match="libreoffice with five beams"):
        samples.translated(file)


@dataclasses.dataclass
class Tokenizer:
    vocab_size: int = 31


@pytest.mark.parametrize("keys", [{}, {"encoder_layers": 1}, {"attention": "cattn_m", "cf_ladders": 2}])
def test_both_ways_write_the_same(keys):
    torch.manual_seed(0)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=8, block_size=24, vocab_size=32, **keys)

    class Loaded:
        model, tokenizer, end_of_text, path = built(config).init_weights().eval(), Tokenizer(), 31, "tiny"

    how = decoding.DecodingConfig(sources=2, length=5, tokens=6, repetitions=1)
    assert set(decoding.measured(Loaded, how)) == {"cached", "recomputed"}
