"""Find out when and where a loss or gradient stopped being finite."""

from functools import partial
from pathlib import Path

import torch

from training.hardware import autocast
from training.sharding import in_parts, is_sharded


class Watch:
    """The figures of the last step, kept on the device. After a step that is not sound, its figures stay.

    `unsound`: float32 scalar, 1 from that step on, else 0. The optimizer skips updates by it, so that the
    host need not look at every step. Only `read` makes the host wait for the device.
    """

    def __init__(self, device: torch.device):
        self.figures = torch.zeros(5, dtype=torch.float64, device=device)
        self.unsound = torch.zeros((), device=device)

    def note(self, step: int, loss: torch.Tensor, norm: torch.Tensor, scale: torch.Tensor):
        """Note loss, gradient norm and loss scale (1: none) of a step, before its update.

        A norm that is not finite is no fault while the loss scale is above 1: the scaler lowers it then.
        """
        sound = loss.isfinite() & (norm.isfinite() | (scale > 1))
        number = self.figures.new_full((), step)
        figures = torch.stack([number, loss.double(), norm.double(), scale.double(), 1 - sound.double()])
        self.figures = torch.where(self.unsound == 1, self.figures, figures)
        self.unsound = self.figures[-1].float()

    def wait(self) -> tuple[int, float, float, float, bool]:
        """(step, loss, norm, scale, whether the step was sound); waits for the device."""
        step, loss, norm, scale, unsound = self.figures.tolist()
        return int(step), loss, norm, scale, not unsound


def steadier(config) -> list[str]:
    """Settings that this configuration lacks and that may keep its training finite."""
    found = [f"a lower learning_rate than {config.learning_rate:g}"]
    if not config.grad_clip:
        found.append("grad_clip=1.0")
    if config.has_ladders and config.cf_pole != "positive":
        found.append("cf_pole=positive")
    if config.has_ladders and config.ladder_lr >= 1:
        found.append("ladder_lr=0.05")
    return found


def failure(
    step: int,
    loss: float,
    norm: float,
    scale: float | None,
    later: int,
    found: list[str],
    saved: Path | None,
    config,
) -> str:
    """The message of a run that ends because the figures of a step are not finite.

    scale: the loss scale of float16. later: how many steps after that one were not made either. found:
    where it began, see `diagnose`. saved: the last checkpoint.
    """
    last = f"the last checkpoint is {saved}, from before" if saved else "there is no checkpoint yet"
    scaled = "" if scale is None else f", loss scale {scale:g}"
    nor = f" (nor the {later:,} after it)" if later else ""
    return (
        f"loss {loss:.4g} and gradient norm {norm:.4g}{scaled} at step {step:,}, "
        f"which was not made{nor}.\n  "
        + "\n  ".join(found[:8] or ["in a second pass over the same batches everything was finite"])
        + f"\n{last}. Try {' or '.join(steadier(config))}"
    )


def diagnose(model, batches, dtype: str, seed: int) -> list[tuple[int, str]]:
    """Run micro-batches [(tokens, targets, ..), ...] again, with the weights that they had.

    model: the plain module, not compiled, not wrapped; its gradients are overwritten. Returns, for each
    micro-batch whose loss or gradients are not finite, its number and a sentence: the first module whose
    output is not finite or, if all outputs are finite, the parameters whose gradients are not. All ranks of
    a sharded model must call this with as many micro-batches; each hears of its own.
    """
    sentences = []
    model.train()
    torch.manual_seed(seed)
    for number, batch in enumerate(batches):
        for parameter in model.parameters():
            parameter.grad = None
        first: list[str] = []
        hooks = [
            module.register_forward_hook(_watch(name, first))
            for name, module in model.named_modules()
            if name
        ]
        overflowed: set[str] = set()
        blocks = model.stacks()
        parts = [(name, module) for name, module in model.named_modules() if module in blocks]
        for prefix, module in (("", model), *parts):
            hooks.append(module.register_forward_pre_hook(_watch_gradients(prefix, overflowed, hooks)))
        with autocast(batch[0].device, dtype, keep=not is_sharded(model)):
            loss = model(*batch)
        loss.backward()
        for hook in hooks:
            hook.remove()
        bad = [name for name, _ in model.named_parameters() if name in overflowed]
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


def _watch_gradients(prefix: str, bad: set[str], hooks: list):
    """A hook before a module's forward pass: it puts the names of those of the module's parameters whose
    gradients are not finite into `bad`, and the hooks that it needs into `hooks`.

    Gradients of a sharded model are looked at before they are averaged over the ranks. Its parameters are
    whole only within the module that gathers them.
    """

    def before(module, inputs):
        for name, parameter in module.named_parameters(prefix):
            if parameter.requires_grad and not in_parts(parameter):
                hooks.append(parameter.register_hook(partial(note, name)))

    def note(name, gradient):
        if not gradient.isfinite().all():
            bad.add(name)

    return before
