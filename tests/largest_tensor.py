"""Watches what operations return, for tests of memory."""

from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements, and how many as large live at once."""

    def __init__(self):
        super().__init__()
        self.size, self.together, self.alive = 0, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                if size > self.size:
                    self.size, self.together, self.alive = size, 0, []
                if size == self.size:
                    self.alive = [one for one in (*self.alive, ref(tensor)) if one() is not None]
                    storages = {one().untyped_storage().data_ptr() for one in self.alive}
                    self.together = max(self.together, len(storages))
        return out
