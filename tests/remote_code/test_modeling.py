"""CoFrGeNetForCausalLM within this repository: masks, caches that grow, and all that it refuses."""

import dataclasses

import pytest
import torch
from transformers import DynamicCache

from models.cache import ROWS
from remote_code.configuration_cofrgenet import CoFrGeNetConfig
from remote_code.modeling_cofrgenet import CoFrGeNetForCausalLM, hidden, joined
from training import pretrained

GREEDY = {"do_sample": False, "eos_token_id": None}


@pytest.fixture
def made(build):
    """made(**keys) -> (a model of transformers, ours with the same weights)"""

    def make(**keys):
        ours = build(**{"tie_embeddings": False, **keys}).eval()
        theirs = CoFrGeNetForCausalLM(CoFrGeNetConfig(model=dataclasses.asdict(ours.config))).eval()
        theirs.model.load_state_dict(ours.state_dict())
        return theirs, ours

    return make


def tokens(*shape):
    return torch.randint(100, shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("keys", [{"position": "rope"}, {"position": "none", "token_shift": True}])
def test_a_cache_grows_with_the_text(made, keys):
    theirs, ours = made(**keys)
    prompt, new = tokens(2, 5), 2 * ROWS
    written = theirs.generate(prompt, max_new_tokens=new, **GREEDY)
    assert torch.equal(written, theirs.generate(prompt, max_new_tokens=new, **GREEDY, use_cache=False))
    window = list(ours.generate(prompt, new, temperature=0, window=300))
    assert torch.equal(written[:, 5:], torch.stack(window, 1))


@torch.no_grad()
def test_rows_with_padding_are_what_they_are_alone(made):
    theirs, ours = made(attention="cattn_u")
    given = tokens(4, 9)
    mask = torch.ones(4, 9, dtype=torch.int64)
    mask[0, :3] = mask[1, 7:] = mask[2, :3] = mask[3, :1] = mask[3, 8:] = 0
    logits = theirs(given, attention_mask=mask).logits
    for row in range(4):
        seen = mask[row].bool()
        torch.testing.assert_close(logits[row, seen], ours(given[row, seen][None])[0], atol=1e-5, rtol=0)
    # a cache of rows that are longer than block_size by their padding
    wide = torch.nn.functional.pad(given[::2], (10, 0)), torch.nn.functional.pad(mask[::2], (10, 0))
    padded = theirs(wide[0], attention_mask=wide[1], use_cache=True).logits
    torch.testing.assert_close(padded[:, 13:], logits[::2, 3:], atol=1e-5, rtol=0)
    last = theirs(given, attention_mask=mask, logits_to_keep=2).logits
    assert torch.equal(last, logits[:, -2:])
    assert torch.equal(theirs(given, return_dict=False)[0], theirs(given).logits)


def test_gradients_flow_through_padding(made):
    theirs, _ = made()
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    labels = tokens(2, 4).masked_fill(mask == 0, -100)
    loss = theirs(tokens(2, 4), attention_mask=mask, labels=labels).loss
    loss.backward()
    assert theirs.model.embedding.weight.grad.norm() > 0
    halves = [
        theirs(tokens(2, 4), attention_mask=mask, labels=labels, num_items_in_batch=n).loss for n in (5, 10)
    ]
    torch.testing.assert_close(halves[0], 2 * halves[1])
    read = joined(hidden(theirs.model, tokens(2, 4), mask), tokens(2, 4))
    assert read[0, 0].count_nonzero() == 0
    assert read[0, 1].count_nonzero() > 0


@torch.no_grad()
def test_hidden_states_are_what_blocks_read(made):
    """Of each row as it is alone, from a cache too; the last one is what the head reads."""
    theirs, ours = made(n_layer=3)
    given, mask = tokens(3, 6), torch.ones(3, 6, dtype=torch.int64)
    mask[1, :2] = 0
    states = theirs(given, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(states) == 4
    x, pos = given[1:2, 2:], torch.arange(4)
    expected = [ours.embed(x, pos)]
    for block in ours.blocks:
        expected.append(block(expected[-1], ours.position.at(pos), pos))
    expected[-1] = ours.norm(expected[-1])
    for state, alone in zip(states, expected, strict=True):
        torch.testing.assert_close(state[1:2, 2:], alone, atol=1e-5, rtol=1e-5)
        assert state[1, :2].count_nonzero() == 0
    first = theirs(given[:, :4], attention_mask=mask[:, :4], use_cache=True, output_hidden_states=True)
    past = first.past_key_values
    more = theirs(given[:, 4:], attention_mask=mask, past_key_values=past, output_hidden_states=True)
    for state, *parts in zip(states, first.hidden_states, more.hidden_states, strict=True):
        torch.testing.assert_close(state, torch.cat(parts, 1), atol=1e-5, rtol=1e-5)
    assert theirs(given).hidden_states is None
    options = {"output_hidden_states": True, "return_dict_in_generate": True}
    written = theirs.generate(given[:1], max_new_tokens=2, **options, **GREEDY)
    assert [step[-1].shape for step in written.hidden_states] == [(1, 6, 24), (1, 1, 24)]


@torch.no_grad()
def test_embeddings_in_place_of_tokens(made):
    theirs, _ = made()
    given, mask = tokens(2, 5), torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
    rows = theirs.get_input_embeddings()(given)
    assert torch.equal(theirs(inputs_embeds=rows).logits, theirs(given).logits)
    logits = theirs(inputs_embeds=rows, attention_mask=mask).logits
    assert torch.equal(logits, theirs(given, attention_mask=mask).logits)
    for keys in ({}, {"attention_mask": mask}):
        written = theirs.generate(inputs_embeds=rows, max_new_tokens=4, **keys, **GREEDY)
        whole = theirs.generate(given, max_new_tokens=4, **keys, **GREEDY)
        assert torch.equal(written, whole[:, 5:])


def test_gradients_with_checkpointing_are_those_without(made):
    theirs, _ = made(n_layer=3)
    theirs.train()
    gradients = []
    for checkpointing in (False, True):
        theirs.gradient_checkpointing_enable(
            {}
        ) if checkpointing else theirs.gradient_checkpointing_disable()
        assert theirs.is_gradient_checkpointing == checkpointing
        rows = theirs.get_input_embeddings()(tokens(2, 4)).detach().requires_grad_()
        output = theirs(inputs_embeds=rows, labels=tokens(2, 4), output_hidden_states=True)
        (output.loss + output.hidden_states[1].square().mean()).backward()
        gradients.append([rows.grad, *(p.grad for p in theirs.parameters())])
        theirs.zero_grad()
    for before, after in zip(*gradients, strict=True):
        torch.testing.assert_close(before, after)


@torch.no_grad()
def test_a_conversation_goes_on_from_its_cache(made):
    theirs, _ = made(attention="cattn_relative", position="none", cattn_content=True, token_shift=True)
    first = theirs.generate(tokens(2, 3), max_new_tokens=3, return_dict_in_generate=True, **GREEDY)
    longer = torch.cat([first.sequences, tokens(2, 2)], 1)
    assert first.past_key_values.get_seq_length() == 5
    more = theirs.generate(longer, past_key_values=first.past_key_values, max_new_tokens=4, **GREEDY)
    assert torch.equal(more, theirs.generate(longer, max_new_tokens=4, **GREEDY))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "holes in its text in row 0"),
        ({"attention_mask": torch.tensor([[0, 0, 0, 0]])}, "no token in row 0"),
        ({"attention_mask": torch.ones(1, 1, 4, 4)}, r"attention_mask.*\[1, 4\].*\[1, 1, 4, 4\]"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 0]]), "use_cache": True}, "row 0 has padding after"),
        ({"input_ids": None}, "give input_ids"),
        ({"inputs_embeds": torch.zeros(1, 4, 24)}, "not both"),
        ({"input_ids": tokens(1, 0), "use_cache": True}, r"input_ids is \[1, 0\]"),
        ({"position_ids": torch.arange(4)}, "not supported: position_ids"),
        ({"output_attentions": True}, "not supported: output_attentions"),
        ({"labels": torch.zeros(1, 4).long(), "use_cache": True}, "a cache has no gradients"),
    ],
)  # fmt: skip
def test_what_forward_refuses(made, keys, said):
    with pytest.raises(ValueError, match=said):
        made()[0](**{"input_ids": tokens(1, 4), **keys})


def test_what_a_cache_refuses(made):
    theirs, _ = made()
    output = theirs(tokens(2, 4), use_cache=True)
    past = output.past_key_values
    assert not output.logits.requires_grad
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache"):
        theirs(tokens(2, 1), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match=r"cache .* 2 rows.* 1"):
        theirs(tokens(1, 1), past_key_values=past)
    for mask in (torch.ones(2, 1), torch.tensor([[1, 1, 1, 1, 0]] * 2)):
        with pytest.raises(ValueError, match=r"attention_mask.*\[2, 5\]"):
            theirs(tokens(2, 1), attention_mask=mask, past_key_values=past)
    with pytest.raises(ValueError, match=r"18 tokens .*block_size=17"):
        theirs(tokens(2, 14), past_key_values=past)


def test_what_generate_and_the_rest_refuse(made, tmp_path):
    theirs, _ = made()
    with pytest.raises(ValueError, match=r"103 tokens .*block_size=17"):
        theirs.generate(tokens(1, 4), max_new_tokens=100)
    read = []
    theirs.model.blocks[0].register_forward_pre_hook(lambda *_: read.append(1))
    rows = theirs.get_input_embeddings()(tokens(1, 10)).detach()
    with pytest.raises(ValueError, match=r"18 tokens .*block_size=17"):
        theirs.generate(inputs_embeds=rows, max_new_tokens=9)
    assert not read
    assert theirs.generate(inputs_embeds=rows, max_new_tokens=8, **GREEDY).shape == (1, 8)
    with pytest.raises(ValueError, match="not supported: output_attentions"):
        theirs.generate(tokens(1, 4), max_new_tokens=2, output_attentions=True)
    theirs, _ = made(value_embeddings=True)
    with pytest.raises(ValueError, match="value_embeddings, which need input_ids"):
        theirs(inputs_embeds=torch.zeros(1, 4, 24))
    theirs, _ = made()
    with pytest.raises(ValueError, match="stateful models"):
        theirs.generate(tokens(1, 4), max_new_tokens=2, assistant_model=theirs)
    with pytest.raises(ValueError, match=r"vocabulary .* 100 .* 101"):
        theirs.resize_token_embeddings(101)
    theirs.save_pretrained(tmp_path)
    assert isinstance(CoFrGeNetForCausalLM.from_pretrained(tmp_path), CoFrGeNetForCausalLM)
    config = CoFrGeNetConfig(model={**theirs.config.model, "ffn": "swiglu"})
    with pytest.raises(ValueError, match=r"weights .*config\.json"):
        CoFrGeNetForCausalLM.from_pretrained(tmp_path, config=config, ignore_mismatched_sizes=True)


@torch.no_grad()
def test_what_transformers_trained_in_bfloat16_is_read_here(made, tmp_path):
    theirs, ours = made(ffn="cffn_gated", cf_eval_clip=True)
    theirs.bfloat16()
    theirs.config.format = pretrained.FORMAT
    theirs.save_pretrained(tmp_path)
    source = pretrained.open_source(str(tmp_path))
    weights = source.read()
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    back = pretrained.build(source).eval()
    torch.testing.assert_close(back(tokens(1, 9)), ours(tokens(1, 9)), atol=0.05, rtol=0)
