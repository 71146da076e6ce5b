import itertools

import pytest
import torch

import train
from layers import ATTENTION, FFN
from training.config import TrainConfig
from training.optimizer import adamw, muon, norm_and_divisor, orthogonalised

VARIANTS = [{"attention": a, "ffn": f, "bias": True} for a, f in itertools.product(ATTENTION, FFN)]
VARIANTS += [
    {"ffn": "cffn_gated", "cffn_gate": "glu_collapsed"},
    {"ffn": "cffn_added", "position": "expe", "expe_learned": "random"},
    {"attention": "cattn_m", "cattn_proj": True, "tie_embeddings": False},
    {"encoder_layers": 1},
]


def test_decay_groups(build):
    """Matrices and embeddings decay; biases, norms and ladder weights do not, those by depth."""
    model = build(attention="cattn_u", ffn="cffn_product", bias=True)
    decayed, kept, *ladders = adamw(model, 1e-3, 0.1, (0.9, 0.95)).param_groups
    groups = [decayed, kept, *ladders]
    assert [g["depth"] for g in groups] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [g["weight_decay"] for g in groups] == [0.1, *[0] * 9]
    literal = adamw(model, 1e-3, 0.1, (0.9, 0.95), decay_ladders=True).param_groups
    assert [g["weight_decay"] for g in literal] == [0.1, 0] * 5
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(".W." not in names[id(p)] and p.dim() >= 2 for p in decayed["params"])
    scales = {name for name in names.values() if name.endswith(".w0")}
    assert scales <= {names[id(p)] for p in kept["params"]}
    for group in literal[2:]:
        assert {names[id(p)].split(".")[-2] for p in group["params"]} == {
            "W" if group["weight_decay"] else "b"
        }
    assert any(names[id(p)].endswith(".M") for p in decayed["params"])
    for depth in (1, 2, 3, 4):
        found = {names[id(p)] for g in ladders if g["depth"] == depth for p in g["params"]}
        assert found == {n for n in names.values() if n.endswith((f".W.{depth - 1}", f".b.{depth - 1}"))}


def test_decay_shrinks_only_what_decays(build):
    model = build(attention="cattn_m", ffn="cffn_added")
    optimizer = adamw(model, 0.1, 0.5, (0.9, 0.95))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = (parameter / before[name]).nanmedian().item()
        still = ".W." in name or ".b." in name or "norm" in name
        assert factor == pytest.approx(1.0 if still else 0.95), name


@pytest.mark.parametrize("keys", VARIANTS)
def test_what_muon_takes(build, keys):
    """The linear maps of the blocks and nothing else, by name; the rest is grouped as without Muon."""
    model = build(**keys)
    *others, matrices = muon(model, 1e-3, 0.1, (0.9, 0.95)).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    maps = {"qkv", "proj", "value", "up", "down", "gate", "U", "V", "U1", "U2", "rates", "out"}
    maps |= {"query", "key_value"}  # of cross-attention
    found = {names[id(p)] for p in matrices["params"]}
    expected = (name for name in names.values() if name.startswith(("blocks.", "encoder.blocks.")))
    assert found == {n for n in expected if n.endswith(".weight") and n.split(".")[-2] in maps}
    assert all(p.dim() == 2 for p in matrices["params"])
    assert (matrices["muon"], matrices["depth"], matrices["weight_decay"]) == (True, 0, 0.1)
    taken = {id(p) for p in matrices["params"]}
    plain = adamw(model, 1e-3, 0.1, (0.9, 0.95)).param_groups
    for group, before in zip(others, plain, strict=True):
        assert [id(p) for p in group["params"]] == [id(p) for p in before["params"] if id(p) not in taken]
        assert (group["muon"], group["depth"]) == (False, before["depth"])


@pytest.mark.parametrize(("dtype", "half"), [("float32", 0), ("float16", 0), ("bfloat16", 1)])
def test_muons_iteration_is_bfloat16_where_the_run_is(build, dtype, half):
    config = TrainConfig(optimizer="muon", dtype=dtype)
    expected = torch.bfloat16 if half else torch.float32
    assert train.build_optimizer(config, build()).muon_dtype == expected


def random_gradients(model, scale=1.0):
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def naive(matrix):
    """The iteration on the singular values themselves, in float64."""
    U, S, V = torch.linalg.svd(matrix.double(), full_matrices=False)
    S = S / S.norm()
    for _ in range(5):
        S = 3.4445 * S - 4.7750 * S**3 + 2.0315 * S**5
    return U * S @ V


@pytest.mark.parametrize("shape", [(5, 5), (3, 8), (8, 3), (1, 7), (40, 24)])
def test_orthogonalised(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = naive(matrix)
    assert torch.allclose(orthogonalised(matrix, torch.float32).double(), expected, atol=1e-4)
    half = orthogonalised(matrix, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.allclose(half.double(), expected, atol=0.05)
    assert not orthogonalised(torch.zeros(shape), torch.float32).any()


def test_steps_of_muon(build):
    """Two steps of each matrix against the equation in float64; the others move as AdamW moves them."""
    model, same = build(ffn="cffn_added"), build(ffn="cffn_added")
    optimizer, plain = muon(model, 0.01, 0.3, (0.9, 0.95)), adamw(same, 0.01, 0.3, (0.9, 0.95))
    matrices = optimizer.param_groups[-1]["params"]
    of_muon = {id(p) for p in matrices}
    expected = [p.detach().double().clone() for p in matrices]
    momenta = [torch.zeros_like(weight) for weight in expected]
    for scale in (1.0, 3.0):
        random_gradients(model, scale)
        random_gradients(same, scale)
        for number, p in enumerate(matrices):
            momenta[number] = 0.95 * momenta[number] + 0.05 * p.grad.double()
            update = naive(0.05 * p.grad.double() + 0.95 * momenta[number])
            expected[number] *= 1 - 0.01 * 0.3
            expected[number] -= 0.01 * 0.2 * max(p.shape) ** 0.5 * update
        optimizer.step()
        plain.step()
        optimizer.zero_grad(set_to_none=True)
        for p, weight in zip(matrices, expected, strict=True):
            assert torch.allclose(p.double(), weight, atol=1e-5)
    for ours, p in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(ours, p) == (id(ours) not in of_muon)
        assert len(optimizer.state[ours]) == (1 if id(ours) in of_muon else 3)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
def test_muon_is_that_of_pytorch(build):
    """To the bit, in the precision that PyTorch's has."""
    model, same = build(ffn="swiglu"), build(ffn="swiglu")
    optimizer = muon(model, 0.01, 0.3, (0.9, 0.95), dtype=torch.bfloat16)
    of_muon = {id(p) for p in optimizer.param_groups[-1]["params"]}
    pairs = [(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True) if id(p) in of_muon]
    theirs = torch.optim.Muon(
        [q for _, q in pairs], 0.01, 0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for scale in (1.0, 0.1, 5.0):
        random_gradients(model, scale)
        random_gradients(same, scale)
        optimizer.step(torch.zeros(()))
        theirs.step()
        assert all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize("make", [adamw, muon])
def test_clipping_within_the_step(build, make):
    """To the bit that of divided gradients; up to rounding that of PyTorch's clipping."""
    models = [build(attention="cattn_m", ffn="cffn_added") for _ in range(3)]
    divided, before, clipped = (make(model, 0.01, 0.3, (0.9, 0.95)) for model in models)
    for scale in (1.0, 1e-6):  # the moments of Adam do not depend on a scale that all gradients share
        for model in models:
            random_gradients(model, scale)
        norm, divisor = norm_and_divisor(models[0], 0.5)
        assert norm == torch.nn.utils.clip_grad_norm_(models[2].parameters(), 0.5)
        assert (divisor > 1) == (scale == 1)
        for parameter in models[1].parameters():
            parameter.grad /= divisor
        divided.step(torch.zeros(()), divisor)
        before.step(torch.zeros(()))
        clipped.step(torch.zeros(()))
    for one, same, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, same)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    random_gradients(models[0])
    divided.step()  # the divisor of the last step is forgotten
    random_gradients(models[1])
    before.step()
    for one, same in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, same)


@pytest.mark.parametrize("make", [adamw, muon])
def test_a_step_that_is_left_out_leaves_no_trace(build, make):
    """Weights, moments and counts stay to the bit, though gradients are NaN; then it goes on as if not."""
    models = [build(attention="cattn_m", ffn="cffn_added") for _ in range(2)]
    optimizers = [make(model, 0.01, 0.3, (0.9, 0.95)) for model in models]
    skip = torch.zeros(())
    for model, optimizer in zip(models, optimizers, strict=True):
        random_gradients(model)
        optimizer.step(skip)
    random_gradients(models[0], torch.nan)
    optimizers[0].step(skip + 1)
    for model, optimizer in zip(models, optimizers, strict=True):
        random_gradients(model, 0.5)
        optimizer.step(skip)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p, q)
        for key, value in optimizers[0].state[p].items():
            assert torch.equal(value, optimizers[1].state[q][key])
