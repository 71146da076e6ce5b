"""The explicit start against the paper's formulas, computed in float64 from lists of contexts."""

import dataclasses
import math

import pytest
import torch

from layers.bit_cipher import distributions, embeddings
from models.architecture import model_config
from models.kinds import built
from training.config import TrainConfig
from training.saffu_passes import Pass, chunk_samples, plan

END, N = 3, 20
KEYS = {
    "model": "saffu", "block_size": 12, "vocab_size": N, "saffu_block": 5, "saffu_radius": 3,
    "saffu_block_width": 7, "saffu_radius_width": 6, "saffu_hidden": 8, "saffu_end_of_text": END,
    "device": "cpu", "compile": False,
}  # fmt: skip
CAT = {"saffu_block_mode": "cat", "saffu_radius_mode": "sum"}


def config(**keys):
    made = TrainConfig(**{**KEYS, **keys})
    assert made.check() == []
    return made


def windows(count=24):
    """Samples of a language in which a token says much about the next one: [count, 13]."""
    drawn = torch.Generator().manual_seed(5)
    rows = [torch.randint(N, (count,), generator=drawn)]
    for _ in range(12):
        step = torch.randint(3, (count,), generator=drawn) ** 2 + 1
        rows.append((3 * rows[-1] + step) % N)
    return torch.stack(rows, 1)


def started(given=None, shards=1, **keys):
    """The model after its passes; the samples are added in as many shards."""
    settings = config(**keys)
    torch.manual_seed(0)
    model = built(model_config(settings)).init_weights()
    given = windows() if given is None else given
    for number, name in plan(settings):
        made = Pass(model, settings, number, name)
        total = made.zeros()
        for shard in range(shards):
            sums = made.zeros()
            for rows in given.split(4)[shard::shards]:
                made.add(sums, rows[:, :-1], rows[:, 1:])
            total = {key: value + sums[key] for key, value in total.items()}
        made.finish(total)
    return model


def loss(model, given=None):
    given = windows() if given is None else given
    return model(given[:, :-1], given[:, 1:]).item()


def smoothed(F, K, floor=1e-12):
    F = F.clamp(min=floor * F.max())
    return F.log() - (K - 1) / K * F.sum(0).log()


@torch.no_grad()
def oracle(tuning, sign, cat, given):
    """(W of each unit, U of each unit, M), from the formulas and one prediction after the other."""
    model = started()  # for contexts and sizes alone
    tokens, targets = given[:, :-1], given[:, 1:].flatten()
    ids, places = model.contexts(tokens)
    f = targets.bincount(minlength=N)
    pairs = zip(ids, places[0], strict=True)
    contexts = torch.cat([row[where] for row, where in pairs])[:, :3].tolist()
    starts = sum(second == N + 2 for _, second, _ in contexts)
    further = sum(first == N + 1 and second < N and third == N + 2 for first, second, third in contexts)
    every = torch.cat((f, torch.tensor([starts, further, starts])))
    Y = distributions(f, 8)[targets]
    W, U, g = [], [], []
    for unit, place, concatenate in zip(model.units, places, cat, strict=True):
        E, K = embeddings(every, unit.width), unit.slots
        X = torch.cat([E[row[where]] for row, where in zip(ids, place, strict=True)])  # [P, K, D]
        Q = torch.einsum("pd,pkd->pk", X[:, unit.head], X)
        c = 2 * (1 + 1 / K) * math.log(N + 3)
        side = E.log()[targets] - (E[targets].mean(0)).log()
        V = sign * torch.einsum("pd,pkd->pk", side, X) + c
        for number in range(tuning + 1):
            w = smoothed(Q.T @ V, math.log(K), 0.0)
            A = -(Q @ w).log_softmax(1)
            parts = A[..., None] * X
            H = parts.flatten(1) if concatenate else parts.sum(1)
            u = smoothed(H.T @ Y, K * math.log(K))
            if number < tuning:
                side = (Y - (H @ u).softmax(1)) @ u.T
                side = side.unflatten(1, (K, -1)) if concatenate else side[:, None]
                V = sign * (side * X).sum(-1) + c
        W.append(w)
        U.append(u)
        g.append((H @ u).softmax(1))
    M = smoothed(torch.cat(g, 1).T @ torch.eye(N, dtype=torch.float64)[targets], 2)
    return W, U, M


@pytest.mark.parametrize(("tuning", "sign", "keys"), [
    (0, 1, {}), (2, 1, {}), (1, -1, CAT), (0, -1, {}), (2, 1, CAT),
])  # fmt: skip
def test_the_start_equals_the_formulas(tuning, sign, keys):
    cat = [keys.get("saffu_block_mode", "sum") == "cat", keys.get("saffu_radius_mode", "cat") == "cat"]
    W, U, M = oracle(tuning, sign, cat, windows())
    how = "printed" if sign == 1 else "negated"
    model = started(saffu_tuning=tuning, saffu_attention=how, **keys)
    close = {"atol": 2e-3, "rtol": 2e-4}
    for unit, w, u in zip(model.units, W, U, strict=True):
        torch.testing.assert_close(unit.attention.double(), w, **close)
        common = u > -15  # the rest was counted never, and float32 has no such small sums
        torch.testing.assert_close(unit.decoder.double()[common], u[common], **close)
    torch.testing.assert_close(model.head.double().T[M > -12], M[M > -12], atol=1e-2, rtol=1e-3)


VARIANTS = [
    {"saffu_attention": "negated"},
    {"saffu_attention": "uniform"},
    {"saffu_block_head": 2, "saffu_radius_head": 1},
    {"saffu_floor": 0.3},
    {"saffu_priming": "mean"},
    {"saffu_output_priming": 1.0},
    {"saffu_temperature": 0.5},
    {"saffu_hidden": 12},
    {"saffu_hidden": None},
    {"saffu_block_mode": "cat"},
    {"saffu_radius_mode": "sum"},
    {"saffu_block": None},
    {"saffu_radius": None},
    {"saffu_tuning": 1},
    {"saffu_hidden": None, "saffu_tuning": 1, "saffu_block_mode": "cat"},
]


@torch.no_grad()
@pytest.mark.parametrize("keys", VARIANTS, ids=str)
def test_every_variant_changes_the_model_and_beats_the_unigram(keys):
    given = windows()
    model, plain = started(**keys), started(**({"saffu_hidden": None} if len(keys) == 3 else {}))
    assert not torch.allclose(model(given[:, :-1]), plain(given[:, :-1]), atol=1e-5)
    counts = given[:, 1:].flatten().bincount(minlength=N).double()
    unigram = -(counts / counts.sum()).xlogy(counts / counts.sum()).sum().item()
    if keys != {"saffu_output_priming": 1.0}:  # a wrong prior
        assert loss(model) < unigram


def test_what_the_variants_are():
    uniform = started(saffu_attention="uniform")
    assert all(not unit.attention.any() for unit in uniform.units)
    plain, floor = started(), started(saffu_floor=0.1)
    assert floor.units[0].decoder.min() > plain.units[0].decoder.min()
    # one unit: its output is the exact conditional distribution of g
    alone = started(saffu_block=None)
    assert alone.head.shape == (N, 8)
    # K_M = 1: its M has no second term, log F alone
    given = windows()
    h = alone.hidden(given[:, :-1]).flatten(0, 1).double()
    F = h.T @ torch.eye(N, dtype=torch.float64)[given[:, 1:].flatten()]
    common = F > 1e-4
    torch.testing.assert_close(alone.head.double().T[common], F.log()[common], atol=1e-3, rtol=1e-3)
    # a head behind both units adds up their vectors, so that its K is the sum of their bounds
    both = started(saffu_hidden=None)
    assert both.head.shape[1] == sum(unit.inputs for unit in both.units)
    features = torch.cat(both.features(given[:, :-1]), -1).flatten(0, 1).double()
    F = features.T @ torch.eye(N, dtype=torch.float64)[given[:, 1:].flatten()]
    expected = smoothed(F, sum(unit.slots * math.log(unit.slots) for unit in both.units))
    common = F > 1e-4
    torch.testing.assert_close(both.head.double().T[common], expected[common], atol=1e-3, rtol=1e-3)
    # with all of its weight on the prior, a direct decoder is the unigram
    cold = started(saffu_hidden=None, saffu_temperature=1e-9, saffu_block=None, saffu_priming="mean")
    counts = cold.counts.double()
    found = cold(windows()[:, :-1]).softmax(-1)[0, 0].double()
    torch.testing.assert_close(found, counts / counts.sum(), atol=0.02, rtol=0.1)


def test_the_mean_norm_is_near_its_bound():
    model, given = started(saffu_attention="uniform"), windows()
    for h, unit in zip(model.features(given[:, :-1]), model.units, strict=True):
        norm = h.sum(-1).mean().item()
        assert norm == pytest.approx(unit.slots * math.log(unit.slots), rel=1e-5)
    # so that saffu_priming=mean has the same K there
    mean, bound = (started(saffu_attention="uniform", saffu_priming=how) for how in ("mean", "bound"))
    for one, other in zip(mean.units, bound.units, strict=True):
        torch.testing.assert_close(one.decoder, other.decoder, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("keys", [{}, {"saffu_hidden": None}, {"saffu_tuning": 1, **CAT}])
def test_sums_of_shards_are_the_sum_of_all(keys):
    """Of the same chunks: only the order of the float64 sums differs."""
    settings = config(**keys)
    model = started(**keys)
    for number, name in plan(settings):
        made = Pass(model, settings, number, name)
        parts = [made.zeros() for _ in range(3)]
        for at, rows in enumerate(windows().split(4)):
            for sums in (parts[0], parts[1 + at % 2]):
                made.add(sums, rows[:, :-1], rows[:, 1:])
        for key, total in parts[0].items():
            torch.testing.assert_close(parts[1][key] + parts[2][key], total, atol=0, rtol=1e-12)


def test_embeddings_and_counts():
    model, given = started(), windows()
    assert model.counts.tolist() == given[:, 1:].flatten().bincount(minlength=N).tolist()
    for unit in model.units:
        assert (unit.embedding > 0).all()
        torch.testing.assert_close(unit.embedding.sum(1), torch.ones(N + 3))
        special = unit.embedding[N:]
        assert (special[0] - special[1]).abs().max() > 1e-4


def test_other_starts():
    given = windows()
    cold, prior = started(saffu_init="random"), started(saffu_init="prior")
    counts = given[:, 1:].flatten().bincount(minlength=N).double() + 1
    unigram = -(given[:, 1:].flatten().bincount(minlength=N) / 288).double() @ (counts / counts.sum()).log()
    assert loss(prior) == pytest.approx(unigram.item(), abs=0.05)
    # the outputs of each of the two units sum to 1, so their rows of the head sum to the prior
    weights = prior.head.double().mean(1) * len(prior.units)
    torch.testing.assert_close(weights, (counts / counts.sum()).log(), atol=0.03, rtol=0.03)
    assert loss(cold) == pytest.approx(math.log(N), abs=0.05)
    torch.testing.assert_close(cold.units[0].embedding, started().units[0].embedding)
    assert plan(config(saffu_init="random", saffu_embeddings="random")) == []
    assert plan(config(saffu_attention="uniform")) == [(0, "counts"), (0, "decoders"), (0, "head")]


def test_chunks_depend_on_the_model_alone():
    small = built(model_config(config()))
    assert chunk_samples(small) == 2**14 // 12
    wide = built(model_config(config(block_size=1000, saffu_block=128, saffu_block_width=128, **CAT)))
    assert chunk_samples(wide) == 2**25 // 2**14 // 1000


def test_without_a_solution_it_says_so():
    made = Pass(started(), config(), 0, "attention")
    sums = made.zeros()
    with pytest.raises(ValueError, match=r"block unit: F\(Q, V\)"):
        made.finish(sums)


def test_mistakes():
    def wrong(**keys):
        return " ".join(TrainConfig(**{**KEYS, **keys}).check())

    for keys, told in [
        ({"saffu_floor": 2.0}, "saffu_floor must be above 0"),
        ({"saffu_tokens": 0}, "saffu_tokens must be at least 1"),
        ({"saffu_tuning": -1}, "saffu_tuning must be at least 0"),
        ({"saffu_tuning": 1, "saffu_attention": "uniform"}, "there is none"),
        ({"saffu_init": "random", "saffu_temperature": 0.5}, "saffu_temperature acts with saffu_init"),
        ({"saffu_embeddings": "random"}, "needs embeddings above 0"),
        ({"saffu_init": "prior", "saffu_hidden": None}, "needs hidden bits"),
        ({"saffu_output_priming": 1.0, "saffu_hidden": None}, "there are none"),
        ({"optimizer": "muon"}, "model=saffu has none: take adamw"),
        ({"sharding": "full"}, "Take --sharding=none"),
        ({"activation_checkpointing": True}, "leave it out"),
        ({"dyadic": True}, "model=saffu has no ladders"),
        ({"model": "gpt"}, "saffu_block=5 is a key of model=saffu"),
    ]:
        assert told in wrong(**keys), told
    plain = TrainConfig(saffu_tuning=3)
    assert "saffu_tuning=3 acts with model=saffu" in " ".join(plain.check())
    only = config(saffu_only=True)
    assert (only.max_iters, only.warmup_iters) == (0, 0)
    assert dataclasses.replace(only).check() == []
