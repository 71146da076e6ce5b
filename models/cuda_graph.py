"""What a GPU does again and again, as a CUDA graph: hundreds of launches by the host become one."""

import contextlib
from collections.abc import Callable

import torch


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


@contextlib.contextmanager
def unchanged_random_numbers():
    """Warming up draws none of the numbers that come after it."""
    state = torch.cuda.get_rng_state()
    yield
    torch.cuda.set_rng_state(state)
