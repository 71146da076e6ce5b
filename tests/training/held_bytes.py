"""The bytes of tensors that a process holds, counted after every operation."""

import time

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SECONDS = 5  # for a thread of gloo


class HeldBytes(TorchDispatchMode):
    """`peak`: the most bytes that the storages had which operations in this context have read or written.

    A storage counts once and for as long as it lives. limit: what is expected. Above it, threads of gloo
    that hold tensors of the last collective get time to let them go. apart: tensors whose storages do not
    count, such as pages of a mapped file.
    """

    def __init__(self, limit: int, apart=()):
        super().__init__()
        self.limit, self.peak, self.storages = limit, 0, {}
        self.apart = [tensor.untyped_storage() for tensor in tree_leaves(apart) if is_tensor(tensor)]
        self.outside = {storage._cdata for storage in self.apart}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if is_tensor(tensor):
                self.note(tensor)
        self.peak = max(self.peak, self.held(self.limit))
        if self.peak > self.limit:
            self.limit = 2**63  # it failed; do not wait again
        return result

    def note(self, tensor):
        # what wraps another tensor (DTensor, AsyncCollectiveTensor) has no memory of its own
        inside = getattr(tensor, "_local_tensor", getattr(tensor, "elem", tensor))
        storage = inside.untyped_storage()
        if storage.device.type != "meta" and storage._cdata not in self.outside:
            self.storages.setdefault(storage._cdata, StorageWeakRef(storage))

    def held(self, limit: int) -> int:
        end = time.monotonic() + SECONDS
        while True:
            self.storages = {key: found for key, found in self.storages.items() if not found.expired()}
            held = sum(map(size, self.storages.values()))
            if held <= limit or time.monotonic() > end:
                return held
            time.sleep(0.01)


def is_tensor(value) -> bool:
    return isinstance(value, torch.Tensor)


def size(found: StorageWeakRef) -> int:
    """As long as it is now: sharding frees storages by making them empty."""
    storage = torch.UntypedStorage._new_with_weak_ptr(found.cdata)
    return 0 if storage is None else storage.nbytes()
