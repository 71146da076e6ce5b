"""The implementations of a kernel, eager and compiled: compared with the naive one, then timed.

A form that computes wrong numbers is not timed.
"""

import functools
from collections.abc import Callable

import torch

from benchmarks.operators import Case, Sizes, cases, describe
from benchmarks.timing import Call
from training.hardware import autocast

# largest relative distance of outputs and gradients from the naive ones in float32
GATE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.05}
# smallest norm that a distance is relative to: the gradient of a softmax over one token is rounding alone
SMALLEST = 0.1


class Forms:
    """The forms of a case on one device, with products in `dtype`."""

    def __init__(self, case: Case, dtype: str, compile: bool, device: torch.device):
        self.case, self.dtype, self.device = case, dtype, device
        self.functions = {
            form: torch.compile(function, fullgraph=True, dynamic=False) if compiled else function
            for form, (function, compiled) in _forms(case, compile).items()
        }
        self.upstream = None
        self.exact = None

    def call(self, form: str) -> Call:
        """One iteration, forward and backward, of a form."""
        label = _label(form)
        inputs = self.case.inputs
        if label in self.case.layouts:
            change = self.case.layouts[label]
            inputs = [change(tensor.detach()).requires_grad_() for tensor in inputs]
        return Call(functools.partial(self._iteration, self.functions[form], self.dtype), inputs)

    def distances(self, form: str) -> list[float]:
        """How far the output and the gradient of each input are from the naive ones in float32."""
        if self.exact is None:
            naive = next(iter(self.case.implementations.values()))
            self.exact = self._tensors(
                Call(functools.partial(self._iteration, naive, "float32"), self.case.inputs)
            )
        found = self._tensors(self.call(form))
        return [
            float((a - b).norm() / b.norm().clamp_min(SMALLEST))
            for a, b in zip(found, self.exact, strict=True)
        ]

    def check(self, form: str):
        """Raises ValueError if a form computes something else than the naive one."""
        if _label(form) in self.case.others:
            return
        for number, distance in enumerate(self.distances(form)):
            if not distance <= GATE[self.dtype]:
                what = "output" if number == 0 else f"gradient of input {number}"
                raise ValueError(
                    f"{form}: wrong {what}, {distance:.2g} away from the naive one (relative; at most "
                    f"{GATE[self.dtype]} in {self.dtype})"
                )

    def _iteration(self, function, dtype, inputs):
        for tensor in inputs:
            tensor.grad = None
        with autocast(self.device, dtype):
            out = function(*inputs)
        if self.upstream is None or self.upstream.shape != out.shape:
            drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
            self.upstream = drawn.to(self.device)
        out.backward(self.upstream.to(out.dtype))
        return out

    def _tensors(self, call):
        out = call()
        return [t.detach().float().clone() for t in (out, *(t.grad for t in call.inputs))]


def _forms(case: Case, compile: bool) -> dict[str, tuple[Callable, bool]]:
    """{form: (function, whether it is to be compiled)}"""
    kinds = {"eager": False, "compiled": True} if compile else {"eager": False}
    functions = case.implementations | case.others
    return {
        f"{label}, {kind}": (function, compiled)
        for label, function in functions.items()
        for kind, compiled in kinds.items()
    }


def _label(form: str) -> str:
    return form.rpartition(", ")[0]


def names(name: str, sizes: Sizes, compile: bool, device: torch.device) -> list[str]:
    """The forms of a case on a device, without its data."""
    return list(_forms(describe(name, sizes, device), compile))


def sections(name: str, sizes: Sizes, dtype: str, compile: bool, device: torch.device) -> dict[str, Call]:
    """{form: one iteration}. Raises ValueError if a form computes something else than the naive one."""
    forms = Forms(cases(device, sizes)[name](), dtype, compile, device)
    for form in forms.functions:
        forms.check(form)
    return {form: forms.call(form) for form in forms.functions}
