"""T5's weights: logits, greedy texts and beams of transformers' T5ForConditionalGeneration."""

import json

import pytest
import torch
import transformers

from decoding.beam import beam_search
from train import main
from training import pretrained
from training.checkpoint import CheckpointError

SIZES = {"vocab_size": 101, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": 2}
SIZES["num_decoder_layers"] = 3
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}


@pytest.fixture
def theirs(tmp_path):
    """A random T5 whose every weight matters, saved in a folder."""
    torch.manual_seed(4)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "relative" in name:
                parameter.normal_(std=1.5)
            elif "shared" not in name:
                parameter.mul_(1.5)
    model.save_pretrained(tmp_path / "t5")
    return model


@pytest.fixture
def ours(theirs, tmp_path):
    return pretrained.build(pretrained.open_source(str(tmp_path / "t5"))).eval()


def sources():
    """(source, lengths, attention mask): each ends with </s>, 1"""
    source, lengths = torch.randint(2, 101, (3, 40)), torch.tensor([40, 3, 17])
    source[torch.arange(3), lengths - 1] = 1
    mask = (torch.arange(40) < lengths[:, None]).long()
    return source * mask, lengths, mask


@torch.no_grad()
def test_logits(ours, theirs):
    source, lengths, mask = sources()
    tokens = torch.cat((torch.zeros(3, 1, dtype=torch.int64), torch.randint(2, 101, (3, 30))), dim=1)
    expected = theirs(input_ids=source, attention_mask=mask, decoder_input_ids=tokens).logits
    assert expected.std() > 0.3
    found = ours(tokens, None, source, lengths)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    cache = ours.new_cache(3, 31, None, source, lengths)
    for end in (11, 12, 31):
        start = int(cache.filled)
        last = ours.decode(tokens[:, start:end], cache)
        torch.testing.assert_close(last, expected[:, end - 1], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("length_penalty", [1.0, 0.3])
def test_greedy_texts_and_beams(ours, theirs, length_penalty):
    source, lengths, mask = sources()
    keys = {"attention_mask": mask, "max_new_tokens": 25, "do_sample": False}
    # its cache has the encoder's number of layers
    keys |= {"decoder_start_token_id": 0, "use_cache": False}
    read = {"source": source, "lengths": lengths}

    def until_the_end(tokens):
        return tokens[: tokens.index(1)] if 1 in tokens else tokens

    written = theirs.generate(source, num_beams=1, **keys)[:, 1:].tolist()
    greedy = torch.stack(list(ours.generate([[0]] * 3, 25, temperature=0, **read)), dim=1).tolist()
    assert [*map(until_the_end, greedy)] == [*map(until_the_end, written)]
    written = theirs.generate(source, num_beams=4, length_penalty=length_penalty, **keys)[:, 1:].tolist()
    searched = beam_search(ours, [[0]] * 3, 4, 25, 1, length_penalty, **read)
    assert [ranked[0].tokens for ranked in searched] == [*map(until_the_end, written)]
    assert len({tuple(one) for one in written}) == 3


def test_it_trains_as_a_module_of_pytorch(ours):
    source, lengths, _ = sources()
    targets = torch.randint(2, 101, (3, 9))
    tokens = torch.cat((torch.zeros(3, 1, dtype=torch.int64), targets[:, :-1]), dim=1)
    optimizer, losses = torch.optim.AdamW(ours.parameters(), 3e-3), []
    for _ in range(8):
        losses.append(ours(tokens, targets, source, lengths))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"feed_forward_proj": "gated-gelu"}, "feed_forward_proj='gated-gelu'.* relu"),
        ({"d_kv": 16}, "d_kv=16 is not supported, only 8"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not supported"),
    ],
)
def test_other_t5s_are_refused(theirs, tmp_path, change, said):
    path = tmp_path / "t5" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=said):
        pretrained.open_source(str(tmp_path / "t5"))


def test_no_data_set_has_its_tokens(theirs, paired, arguments, tmp_path):
    of_model = ("--dataset", "--n_layer", "--n_head", "--n_embd")
    keys = [key for key in arguments if not key.startswith(of_model)]
    keys += [f"--dataset={paired}", f"--init_from={tmp_path / 't5'}", f"--out_dir={tmp_path / 'new'}"]
    with pytest.raises(SystemExit, match="t5 is a T5"):
        main(keys)
    assert not (tmp_path / "new" / "ckpt").exists()
