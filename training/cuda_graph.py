"""What a GPU does again and again, as a CUDA graph: hundreds of launches by the host become one."""

import contextlib
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
    # what other threads do meanwhile, such as reading the next batch, must not spoil the capture
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = function()
    return graph.replay, result


def possible(options, device: torch.device) -> bool:
    """Whether forward and backward pass of a model can be captured.

    options: what has the keys `compile` and `activation_checkpointing`. Recomputed blocks restore the state
    of the random numbers, which no graph may.
    """
    return device.type == "cuda" and options.compile and not options.activation_checkpointing


def fits(config, device: torch.device, world: int, data) -> bool:
    """Whether those of a run are to be captured: wanted, and always of the same shapes and the same work.

    config: a TrainConfig. data: a Dataset or Mixture. Several ranks exchange gradients during the backward
    pass.
    """
    same = config.model == "gpt" and world == 1 and not data.of_pairs
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


@contextlib.contextmanager
def unchanged_random_numbers():
    """Warming up draws none of the numbers that come after it."""
    state = torch.cuda.get_rng_state()
    yield
    torch.cuda.set_rng_state(state)
