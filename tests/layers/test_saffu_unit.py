"""Contexts and units against loops over tokens and slots, and a whole unit against numbers by hand."""

import math

import pytest
import torch

from layers import explicit
from layers.bit_cipher import embeddings
from layers.saffu import (
    FURTHER,
    PADDING,
    SPECIAL,
    START,
    Unit,
    block_places,
    extended,
    last_ends,
    products,
    radius_places,
    vectors,
)

END = 9


def naive_contexts(tokens, slots):
    """(block, radius) of what follows each token of a list, as lists of tokens and of names."""
    blocks, radii = [], []
    for t in range(len(tokens)):
        ends = [u for u in range(t + 1) if tokens[u] == END]
        document = tokens[ends[-1] + 1 : t + 1] if ends else tokens[: t + 1]
        pieces = [document[i : i + slots - 1] for i in range(0, len(document), slots - 1)] or [[]]
        first = "start" if ends and len(pieces) == 1 else "further"
        block = [first, *pieces[-1]]
        blocks.append(block + ["pad"] * (slots - len(block)))
        radius = ["pad"] * slots + ["start" if ends else "further"] + document
        radii.append(radius[-slots:])
    return blocks, radii


@pytest.mark.parametrize("slots", [2, 3, 5, 30])
def test_contexts_equal_a_loop_over_documents(slots):
    sequence = [1, 2, END, 3, 4, 5, 6, 7, 8, END, END, 1, 5, 5, 2]
    # the last one begins as every stream of an evaluation does
    ended = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, END]
    tokens = torch.tensor([sequence, ended, [END, *sequence[:-1]]])
    ends, ids = last_ends(tokens, END), extended(tokens, 10)
    names = {10: "start", 11: "further", 12: "pad"}
    for row in range(3):
        expected = naive_contexts(tokens[row].tolist(), slots)
        for places, contexts in zip((block_places, radius_places), expected, strict=True):
            found = ids[row][places(ends, slots)[row]].tolist()
            assert [[names.get(token, token) for token in context] for context in found] == contexts
    assert (START, FURTHER, PADDING) == (0, 1, 2)


def test_without_an_end_of_text_all_tokens_are_of_one_document():
    tokens = torch.tensor([[END, 1, END]])
    assert last_ends(tokens, None).tolist() == [[-1, -1, -1]]


def unit(kind="radius", slots=3, width=5, head=1, cat=False, rows=13, bits=4, dtype=torch.float64):
    torch.manual_seed(0)
    made = Unit(kind, slots, width, head, cat, rows, bits)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand(parameter.shape))
    return made.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cat", [False, True])
@pytest.mark.parametrize(("kind", "slots", "head"), [("block", 4, 0), ("radius", 3, 2), ("block", 2, 1)])
def test_a_unit_equals_a_loop_over_slots(kind, slots, head, cat, dtype):
    made = unit(kind, slots, head=head, cat=cat, dtype=dtype)
    tokens = torch.tensor([[1, 2, END, 3, 4, 5, 6], [7, 8, 1, END, END, 2, 2]])
    ids, places = extended(tokens, 10), made.places(last_ends(tokens, END))
    found = made(ids, places)
    E, W = made.embedding.detach().double(), made.attention.detach().double()
    for b in range(2):
        for t in range(7):
            X = [E[ids[b, place]] for place in places[b, t]]
            Q = torch.stack([X[head] @ x for x in X])
            A = -(Q @ W).softmax(0).log()
            weighted = [a * x for a, x in zip(A, X, strict=True)]
            H = torch.cat(weighted) if cat else sum(weighted)
            tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}[dtype]
            torch.testing.assert_close(found[b, t].double(), H, atol=tolerance, rtol=tolerance)
    a = made.weights(made.queries(made.keys(ids), places))
    assert (a >= 0).all()


def test_gradients_equal_finite_differences():
    for cat in (False, True):
        made = unit(cat=cat)
        tokens = torch.tensor([[1, 2, END, 3]])
        ids, places = extended(tokens, 10), made.places(last_ends(tokens, END))
        names = ["embedding", "attention"]

        def run(*given, made=made, names=names, ids=ids, places=places):
            values = dict(zip(names, given, strict=True))
            return torch.func.functional_call(made, values, (ids, places))

        given = [getattr(made, name).detach().requires_grad_() for name in names]
        assert torch.autograd.gradcheck(run, given)


# the example: six tokens, two slots, the second one has the query
TOKENS = torch.tensor([[0, 1, 2, 0, 3, 1, 0, 4, 2, 0, 1, 5, 0, 1, 2, 3, 0, 1, 4, 0]])
PLACES = torch.stack((torch.arange(18), torch.arange(1, 19)), 1)[None]
TARGETS = TOKENS[0, 2:]
ONE_HOT = torch.eye(6, dtype=torch.float64)


def example(cat):
    made = Unit("radius", 2, 3, 1, cat, 6, 6).double()
    with torch.no_grad():
        made.embedding.copy_(embeddings(TOKENS.flatten().bincount(), 3))
    return made


def close(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=2e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cat", [False, True])
def test_a_whole_unit_by_hand(cat):
    made, K, E = example(cat), 2, None
    E, keys = made.embedding, made.keys(TOKENS)
    Q = made.queries(keys, PLACES)[0]
    close(Q[0], [0.084108, 0.797561])
    c = explicit.offset(K, 6)
    mean = ONE_HOT[TARGETS].mean(0) @ E
    V = products((E.log() - mean.log())[TARGETS][None], keys, PLACES)[0] + c
    close(V[0], [3.793234, 4.199866])
    close(Q.T @ V, [[15.804646, 15.770880], [54.808607, 52.788060]])
    made.attention.copy_(explicit.attention(Q.T @ V))
    close(made.attention, [[4.644953, 4.629744], [5.888496, 5.837864]])
    A = made.weights(Q)
    close(A[0], [0.672533, 0.714195])
    H = made(TOKENS, PLACES)[0]
    assert H.sum(1).mean().item() == pytest.approx(1.386672, abs=1e-6)
    U = explicit.decoder(H.T @ ONE_HOT[TARGETS], explicit.decoder_priming(K))
    log_p = (H @ U).log_softmax(1)
    nats = -log_p[torch.arange(18), TARGETS].mean().item()
    assert nats == pytest.approx(1.154009 if cat else 1.373724, abs=1e-6)
    of_0 = [-1.285628, 0.217630, -0.316146, -0.832500, -0.220069, 0.117042]
    close(U[:, 0], of_0 if cat else [-0.340468, 0.715686, 0.616870])
    if cat:
        return
    V = products((U.T[TARGETS] - log_p.exp() @ U.T)[None], keys, PLACES)[0] + c
    close(V[0], [5.675908, 5.341930])
    close(Q.T @ V, [[21.500489, 21.421618], [67.929756, 67.922041]])
    close(explicit.attention(Q.T @ V), [[5.057308, 5.053204], [6.207706, 6.207164]])


def test_the_gradient_of_the_attention_has_the_sign_that_appendix_b_drops():
    made = example(cat=False)
    with torch.no_grad():
        W = torch.tensor([[4.644953, 4.629744], [5.888496, 5.837864]], dtype=torch.float64)
        made.attention.copy_(W)
        U = explicit.decoder(made(TOKENS, PLACES)[0].T @ ONE_HOT[TARGETS], 2 * math.log(2))
    log_p = (made(TOKENS, PLACES)[0] @ U).log_softmax(1)
    log_p[torch.arange(18), TARGETS].sum().backward()
    close(made.attention.grad, [[-0.020626, 0.020626], [0.025412, -0.025412]])


def test_the_vectors_of_a_context():
    keys = torch.randn(2, 7, 3)
    places = torch.randint(7, (2, 4, 5))
    found = vectors(keys, places)
    for b in range(2):
        torch.testing.assert_close(found[b], keys[b][places[b]])
    assert SPECIAL == 3
