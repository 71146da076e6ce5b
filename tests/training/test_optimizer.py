import pytest
import torch

from training.optimizer import adamw


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
