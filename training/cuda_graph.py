"""What a GPU does again and again, as a CUDA graph: hundreds of launches by the host become one."""

from collections.abc import Callable, Iterable

import torch
from torch import nn


def captured(warm_up: Callable, function: Callable, pool=None) -> tuple[Callable, torch.Tensor]:
    """A CUDA graph of `function` -> (replay, the tensor that each replay writes).

    Runs `warm_up` only, which has to compile all that `function` calls. pool: the memory of other graphs,
    which are never replayed out of turn.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            warm_up()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = function()
    return graph.replay, result


class CapturedBackward:
    """Forward and backward pass of micro-batches of one shape, as two CUDA graphs: one writes gradients,
    the other adds to them.

    compute(*batch) -> loss: both passes, without a wait for the device; called without gradients, it makes
    them. parameters: those of the model. Gradients stay where they are: what else changes them must do so
    in place, or give them up (None).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], compute: Callable, batch: tuple):
        self.parameters, self.batch = list(parameters), tuple(x.clone() for x in batch)
        pool = torch.cuda.graph_pool_handle()

        def anew():
            self.forget()
            return compute(*self.batch)

        self.write, self.loss = captured(anew, anew, pool)
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.add, self.added = captured(lambda: None, lambda: compute(*self.batch), pool)
        self.forget()

    def forget(self):
        for parameter in self.parameters:
            parameter.grad = None

    def __call__(self, batch: tuple, first: bool) -> torch.Tensor:
        """-> the loss, overwritten by the next call. first: of a step, whose gradients are written."""
        for own, given in zip(self.batch, batch, strict=True):
            own.copy_(given)
        (self.write if first else self.add)()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return self.loss if first else self.added
