import pytest
import torch

from layers.ladder import LadderEnsemble
from training.optimizer import adamw


def test_decay_groups(build):
    """Matrices and embeddings decay; biases, norms and every ladder weight do not."""
    model = build(attention="cattn_m", ffn="cffn_product", bias=True)
    decayed, kept = (group["params"] for group in adamw(model, 1e-3, 0.1, (0.9, 0.95)).param_groups)
    assert len(decayed) + len(kept) == len(list(model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(".W." not in names[id(p)] and p.dim() >= 2 for p in decayed)
    ladders = [m for m in model.modules() if isinstance(m, LadderEnsemble)]
    assert len(ladders) == 6
    kept_ids = {id(p) for p in kept}
    assert all(id(p) in kept_ids for m in ladders for depth in m.depth_parameters() for p in depth)


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
