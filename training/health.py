"""A loss or gradient that is not finite: where it began."""

import torch

from training.hardware import autocast


def diagnose(model, batches, dtype: str, seed: int) -> list[tuple[int, str]]:
    """Replay micro-batches [(tokens, targets), ...] on weights that have not been updated since.

    model: the plain module, not compiled, not wrapped; its gradients are lost. For each micro-batch whose
    loss or gradients are not finite: its number, and a sentence with the first module that gave something
    not finite or, where all outputs are finite, the parameters whose gradients are not.
    """
    sentences = []
    model.train()
    torch.manual_seed(seed)
    for number, (tokens, targets) in enumerate(batches):
        for parameter in model.parameters():
            parameter.grad = None
        first: list[str] = []
        hooks = [
            module.register_forward_hook(_watch(name, first))
            for name, module in model.named_modules()
            if name
        ]
        with autocast(tokens.device, dtype):
            loss = model(tokens, targets)
        for hook in hooks:
            hook.remove()
        loss.backward()
        bad = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        if not (bad or first or not loss.isfinite()):
            continue
        if first:
            text = f"loss {loss.item():.4g}, first not finite in the output of {first[0]}"
        else:
            # gradients flow backwards: the last parameters of the model are reached first
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            where = f"of {', '.join(bad[-3:][::-1])}{more}" if bad else "nowhere"
            text = f"loss {loss.item():.4g}, every output finite, gradients not finite {where}"
        sentences.append((number, text))
    return sentences


def _watch(name: str, first: list[str]):
    def hook(module, inputs, output):
        if not first and not output.isfinite().all():
            first.append(name)

    return hook
