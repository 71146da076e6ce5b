"""Learning rate as a function of the step."""

import math


def learning_rate(
    step: int, max_iters: int, warmup_iters: int, learning_rate: float, min_lr: float
) -> float:
    """Linear warmup over `warmup_iters` steps, then half a cosine down to `min_lr` at `max_iters`.

    step counts finished updates, from 0; the first update already has a rate above 0.
    """
    if step < warmup_iters:
        return learning_rate * (step + 1) / (warmup_iters + 1)
    share = (step - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * min(1.0, share))) * (learning_rate - min_lr)
