"""Mistakes in a module of one's own: one line that names the class, where a traceback would be."""

import re

import pytest
import torch
from torch import nn

from layers import ATTENTION, FFN
from layers.protocol import ChannelMixer, TokenMixer
from model import GPT
from models.architecture import ModelConfig, declared


class Broken(ChannelMixer):
    """Sound as it stands: each mistake below replaces one of its methods."""

    def __init__(self, config):
        super().__init__(config)
        self.up = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        return self.up(x)


class BrokenAttention(TokenMixer):
    def __init__(self, config, layer=0):
        self.scale = 3


class Plain(nn.Module):
    pass


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(FFN, "broken", Broken)
    monkeypatch.setitem(ATTENTION, "broken", BrokenAttention)


def no_super(self, config):
    self.up = nn.Linear(config.n_embd, config.n_embd)


def no_super_and_no_module(self, config):
    self.hidden = 3


def empty_super(self, config):
    ChannelMixer.__init__(self)


def undefined(self, config):
    ChannelMixer.__init__(self, config)
    self.hidden = config.n_embd * factor  # noqa: F821


def plain_tensor(self, config):
    ChannelMixer.__init__(self, config)
    self.scale = torch.ones(config.n_embd)


def reading(self, config):
    ChannelMixer.__init__(self, config)
    self.scale = nn.Parameter(torch.full((3,), torch.tensor(4.0).item()))


def one_argument(self):
    ChannelMixer.__init__(self, self)


one_argument.__qualname__ = "Broken.__init__"


def list_of_modules(self, config):
    ChannelMixer.__init__(self, config)
    self.up = nn.Linear(config.n_embd, config.n_embd)
    self.more = [nn.Linear(config.n_embd, config.n_embd)]


def no_field(self, config):
    ChannelMixer.__init__(self, config)
    self.width = config.mine_width


def launched(self, x):
    raise RuntimeError("0 active drivers ([]). There should only be one.")  # Triton's, without a GPU


def asserted(self, x):
    assert x.is_cuda, "must be on cuda"


LINE = r"\(\S*test_mistakes_in_modules\.py, line \d+: "
BUILT = rf"Broken cannot be built {LINE}"
FORWARD = rf"Broken\.forward fails {LINE}"
BEGIN = r": begin .*super\(\)\.__init__\(config\)$"
COUNTED = r"[^\n]*\) on the meta device.* define flops_per_token$"
VALUES = r"FLOPs .*no \.item\(\).* flops_per_token$"
SHAPE = r"Broken\.forward must return .*\[1, 17, 24\].* "
LIST = r"^Broken\.validate must return a list.* "


@pytest.mark.parametrize(
    ("method", "mistake", "message"),
    [
        ("__init__", no_super, rf"{BUILT}AttributeError: .*{BEGIN}"),
        ("__init__", no_super_and_no_module, rf"Broken cannot be built{BEGIN}"),
        ("__init__", empty_super, rf"{BUILT}TypeError: .*{BEGIN}"),
        ("__init__", undefined, rf"{BUILT}NameError: name 'factor' is not defined\)$"),
        ("__init__", reading, rf"{BUILT}RuntimeError: .* meta tensors\): .*init_weights$"),
        ("__init__", one_argument, rf"Broken cannot be built .*takes 1 .*{BEGIN}"),
        ("__init__", plain_tensor, r"Broken: self\.scale .*nn\.Parameter"),
        ("__init__", list_of_modules, r"Broken: self\.more .*nn\.ModuleList"),
        (
            "residual_outputs",
            lambda self: self.up,
            r"Broken\.residual_outputs .* Linear$",
        ),
        ("undecayed", lambda self: None, r"Broken\.undecayed .* NoneType$"),
        (
            "__init__",
            no_field,
            r"'ModelConfig' .*'mine_width'\).* Keys",
        ),
        (
            "validate",
            classmethod(lambda cls, config: [config.mine_width]),
            "validate reads config.mine_width",
        ),
        ("forward", lambda self, x: x * x.sum().item(), rf"{FORWARD}RuntimeError: .*{VALUES}"),
        ("forward", lambda self, x: x if x.sum() > 0 else -x, VALUES),
        ("forward", lambda self, x: x[x > 0], VALUES),
        ("forward", lambda self, x: x + torch.ones(24, device="cpu"), VALUES),
        ("forward", lambda self, x: x @ x, rf"{FORWARD}RuntimeError: {COUNTED}"),
        ("forward", launched, rf"{FORWARD}RuntimeError: 0 active drivers{COUNTED}"),
        ("forward", asserted, rf"{FORWARD}AssertionError: must be on cuda{COUNTED}"),
        ("forward", lambda self, x: x.repeat(1, 1, 2), rf"{SHAPE}\[1, 17, 48\]$"),
        ("forward", lambda self, x: x.mean(1, keepdim=True), rf"{SHAPE}\[1, 1, 24\]$"),
        ("forward", lambda self, x: None, rf"{SHAPE}NoneType$"),
        ("validate", classmethod(lambda cls, config: None), f"{LIST}None$"),
        ("validate", classmethod(lambda cls, config: "no"), f"{LIST}'no'$"),
        ("validate", classmethod(lambda cls, config: [3]), rf"{LIST}\[3\]$"),
    ],
)
def test_a_mistake_is_one_line(tiny, monkeypatch, method, mistake, message):
    assert tiny(ffn="broken").check() == []
    monkeypatch.setattr(Broken, method, mistake)
    (told,) = tiny(ffn="broken").check()
    assert re.search(message, told)
    assert "\n" not in told
    assert told.startswith("Broken.validate" if method == "validate" else "ffn=broken: Broken")


def test_mistakes_in_an_attention(tiny):
    (told,) = tiny(attention="broken", position="none").check()
    assert told.endswith("super().__init__(config, layer)")


@pytest.mark.parametrize(
    ("registry", "keys", "base"),
    [
        (ATTENTION, {"attention": "plain", "position": "rope"}, "TokenMixer"),
        (FFN, {"ffn": "plain"}, "ChannelMixer"),
    ],
)
def test_a_class_outside_the_protocol(tiny, monkeypatch, registry, keys, base):
    monkeypatch.setitem(registry, "plain", Plain)
    (told,) = tiny(**keys).check()
    assert told.endswith(f"=plain: Plain must derive from {base}")
    declared()  # with which every script begins


def test_a_module_that_counts_its_flops_may_read_values(tiny, monkeypatch):
    monkeypatch.setattr(Broken, "forward", lambda self, x: x * x.sum().item())
    monkeypatch.setattr(Broken, "flops_per_token", classmethod(lambda cls, config, context: 3))
    assert tiny(ffn="broken").check() == []
    assert GPT(tiny(ffn="broken"))(torch.zeros(1, 3, dtype=torch.int64)).shape == (1, 3, 100)


def test_a_run_of_a_broken_module_ends_with_one_message(run, monkeypatch, capsys):
    monkeypatch.setattr(Broken, "__init__", no_super)
    with pytest.raises(SystemExit) as stop:
        run("a", "--ffn=broken")
    assert stop.value.code == 2
    assert "ffn=broken: Broken cannot be built" in capsys.readouterr().err
    for method in ("flops_per_token", "parameter_count"):
        monkeypatch.setattr(Broken, method, classmethod(lambda *arguments: 3))
    (told,) = ModelConfig(ffn="broken").check()
    assert "Broken cannot be built" in told


def test_the_nearest_name_is_named(tiny):
    (told,) = tiny(attention="SoftMx").check()
    assert told.endswith("not 'SoftMx'; did you mean softmax?")
