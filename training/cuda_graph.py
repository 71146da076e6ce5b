"""The forward and backward pass of training as CUDA graphs."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from models.cuda_graph import captured, unchanged_random_numbers


def possible(options, device: torch.device) -> bool:
    """Whether forward and backward pass of a model can be captured.

    options: what has the keys `compile` and `activation_checkpointing`. Recomputed blocks restore the state
    of the random numbers, which no graph may.
    """
    return device.type == "cuda" and options.compile and not options.activation_checkpointing


def fits(config, device: torch.device, world: int, data) -> bool:
    """Whether those of a run are to be captured: wanted, and always of the same shapes and targets.

    config: a TrainConfig. data: a Dataset or Mixture. Several ranks exchange gradients during the backward
    pass.
    """
    same = config.model == "gpt" and world == 1 and data.unit == "tokens"
    return config.cuda_graph and same and possible(config, device)


class CapturedBackward:
    """Forward and backward pass of micro-batches of one shape, as two CUDA graphs: one writes gradients,
    the other adds to them.

    compute(*batch) -> loss: both passes, without a wait for the device; where there are no gradients, it
    makes them. parameters: those of the model. Gradients stay where they are: what else changes them must
    do so in place, or give them up (None).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], compute: Callable, batch: tuple):
        self.parameters, self.compute = list(parameters), compute
        self.batch = tuple(x.clone() for x in batch)
        self.pool, self.add = torch.cuda.graph_pool_handle(), None
        with unchanged_random_numbers():
            self.write, self.loss = captured(self.anew, self.anew, self.pool)
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.set([None] * len(self.parameters))

    def anew(self):
        self.set([None] * len(self.parameters))
        return self.compute(*self.batch)

    def set(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def __call__(self, batch: tuple, first: bool) -> torch.Tensor:
        """-> the loss, overwritten by the next call. first: of a step, whose gradients are written."""
        for own, given in zip(self.batch, batch, strict=True):
            own.copy_(given)
        if first:
            self.write()
            self.set(self.gradients)
            return self.loss
        if self.add is None:
            with unchanged_random_numbers():
                self.add, self.added = captured(lambda: None, lambda: self.compute(*self.batch), self.pool)
        self.add()
        return self.added
