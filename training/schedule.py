"""What changes with the step: the learning rate, and which depths of the ladders are awake."""

import math

from layers.ladder import Ladders


def learning_rate(
    step: int,
    schedule: str,
    max_iters: int,
    warmup_iters: int,
    decay_iters: int,
    learning_rate: float,
    min_lr: float,
) -> float:
    """Linear warmup over `warmup_iters` steps, then down to the absolute floor `min_lr`, at `max_iters` but
    for rsqrt.

    step counts finished updates, from 0; the first update already has a rate above 0.
    cosine: half a cosine that would reach the floor one step after the last (nanoGPT). linear: a straight
    line to the floor in the last step. wsd (warmup, stable, decay): the peak, and in the last `decay_iters`
    steps a straight line, to the floor in the very last. rsqrt: peak sqrt(warmup_iters / step), whatever
    max_iters is (Vaswani et al. 2017, equation 3); needs warmup_iters >= 1.
    """
    if step < warmup_iters:
        return learning_rate * (step + 1) / (warmup_iters + 1)
    if schedule == "cosine":
        share = min(1.0, (step - warmup_iters) / max(1, max_iters - warmup_iters))
        return min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (learning_rate - min_lr)
    if schedule == "rsqrt":
        return max(min_lr, learning_rate * math.sqrt(warmup_iters / step))
    # the last step at the peak, from which the line goes down
    start = max(warmup_iters, max_iters - 1 - decay_iters) if schedule == "wsd" else warmup_iters
    share = min(1.0, max(0, step - start) / max(1, max_iters - 1 - start))
    return min_lr + (1 - share) * (learning_rate - min_lr)


def wake_step(depth: int, iterations: int) -> int:
    """The first step (from 0) that updates the weights of a depth: the least s >= t (1 - 2^-i).

    Depth i (from 1) trains for the last floor(t / 2^i) of t iterations (CoFrGeNet, training schedule).
    """
    return iterations - (iterations >> depth)


class Dyadic:
    """The dyadic schedule: the ladder weights of depth i hold still until `wake_step(i, iterations)`.

    A depth that sleeps takes part in the forward pass; its gradients are dropped after the backward pass,
    so the optimizer neither moves nor decays it and keeps no moments of it. requires_grad is never touched:
    DistributedDataParallel would not synchronise a parameter that wakes later, and compiled code is
    the same in all phases. The phase follows from the step alone, so there is nothing to save.
    """

    def __init__(self, model, iterations: int):
        self.iterations = iterations
        self.parameters: dict[int, list] = {}  # by depth, from 1
        for module in model.modules():
            if isinstance(module, Ladders):
                for depth, parameters in enumerate(module.depth_parameters(), 1):
                    self.parameters.setdefault(depth, []).extend(parameters)

    def awake(self, depth: int, step: int) -> bool:
        return step >= wake_step(depth, self.iterations)

    def drop_gradients(self, step: int):
        """After the backward pass of `step`, before anything looks at the gradients."""
        for depth, parameters in self.parameters.items():
            if not self.awake(depth, step):
                for parameter in parameters:
                    parameter.grad = None

    def table(self, max_iters: int) -> str:
        """What wakes when, for the start of a run, which may be longer than the schedule's iterations."""
        if not self.parameters:
            return "dyadic schedule: the model has no ladders, so nothing sleeps"
        lines = ["dyadic schedule: everything but the ladders trains from step 0; ladder weights of"]
        for depth, parameters in self.parameters.items():
            wake = wake_step(depth, self.iterations)
            updates = max(0, max_iters - wake)
            when = f"wake at step {wake:>9,} and get {updates:>9,} update{'s' if updates > 1 else ''}"
            when = when if updates else "never wake"
            count = sum(p.numel() for p in parameters)
            lines.append(f"  depth {depth}: {count:>12,} parameters {when}")
        return "\n".join(lines)
