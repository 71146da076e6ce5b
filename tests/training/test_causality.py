"""Parts that see what they must not stop a run by name; all of ours pass, and change no random number."""

import re

import pytest
import torch
from torch import nn

from layers import ATTENTION, FFN, POSITION
from layers.position import NoPosition
from layers.protocol import ChannelMixer, TokenMixer
from training import causality
from training.endings import TrainingError


class Mixer(TokenMixer):
    """y_t = W x_t; each test gives it another forward."""

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.block_size = config.block_size
        self.out = nn.Linear(config.n_embd, config.n_embd)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.out(x)


class Channels(ChannelMixer):
    def __init__(self, config):
        super().__init__(config)
        self.out = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        return self.out(x)


class Position(NoPosition):
    pass


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for registry, cls in ((ATTENTION, Mixer), (FFN, Channels), (POSITION, Position)):
        monkeypatch.setitem(registry, "mine", cls)


def no_mask(self, x):
    return self.out((self.out(x) @ x.mT).softmax(-1) @ x)


def convolved(self, x):
    """A causal convolution by Fourier transforms: the last token changes the last digits of all outputs."""
    n = 2 * x.shape[1]
    kernel = torch.linspace(1, 0, self.block_size)[: x.shape[1], None]
    return torch.fft.irfft(torch.fft.rfft(x, n, 1) * torch.fft.rfft(kernel, n, 0), n, 1)[:, : x.shape[1]]


def whole(self, x):
    if x.shape[1] != self.block_size:
        raise ValueError(f"takes {self.block_size} tokens")
    return x + x.mean(1, keepdim=True)


def on_a_gpu(self, x):
    if not x.is_cuda:
        raise RuntimeError("expected a CUDA tensor")


@pytest.mark.parametrize("position", POSITION)
@pytest.mark.parametrize("attention", ATTENTION)
def test_ours_pass(tiny, attention, position):
    config = tiny(attention=attention, position=position)
    if config.check():
        pytest.skip("no such model")
    state = torch.get_rng_state()
    for ffn in FFN:
        assert causality.check(tiny(attention=attention, position=position, ffn=ffn)) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "forward",
    [
        no_mask,
        whole,
        lambda self, x: x + self.gate * x.mean(1, keepdim=True),  # with a gate that starts at 0
        lambda self, x: x.roll(-1, 1),
        lambda self, x: x.cumsum(1) / x.sum(1, keepdim=True).abs(),
        lambda self, x: torch.where(x[:, -1:] > 0, x, torch.nan),
    ],
)
def test_a_token_mixer_that_sees_the_future(tiny, monkeypatch, forward):
    monkeypatch.setattr(Mixer, "forward", forward)
    with pytest.raises(TrainingError, match=r"attention=mine .*not causal.* token 16\b"):
        causality.check(tiny(attention="mine", position="none"))


@pytest.mark.parametrize(
    "forward", [lambda self, x: x + x.mean(1, keepdim=True), lambda self, x: x + x.roll(1, 1), no_mask]
)
def test_a_channel_mixer_that_sees_other_tokens(tiny, monkeypatch, forward):
    monkeypatch.setattr(Channels, "forward", forward)
    with pytest.raises(TrainingError, match=r"ffn=mine .*mixes tokens.* token 8\b"):
        causality.check(tiny(ffn="mine"))


def test_a_position_that_sees_the_future(tiny, monkeypatch):
    monkeypatch.setattr(Position, "embed", lambda self, x, pos: x + x.flip(1))
    with pytest.raises(TrainingError, match=r"position=mine \(Position\) .*not causal"):
        causality.check(tiny(position="mine"))
    monkeypatch.undo()
    monkeypatch.setitem(POSITION, "mine", Position)
    monkeypatch.setattr(Position, "rotate", lambda self, q, k, pos: (q, k + k.flip(2)))
    with pytest.raises(TrainingError, match=r"\(SoftmaxAttention\) .*position=mine .*not causal"):
        causality.check(tiny(position="mine"))


def test_what_runs_on_the_other_device_alone_is_checked_there(tiny, monkeypatch):
    """A mixer that fails on the CPU, whatever the length, and then runs: the other device is a CPU too."""
    failures = iter(range(2))

    def there_alone(self, x):
        if next(failures, None) is not None:
            raise RuntimeError("expected a CUDA tensor")
        return no_mask(self, x)

    monkeypatch.setattr(Mixer, "forward", there_alone)
    with pytest.raises(TrainingError, match=r"attention=mine .*not causal"):
        causality.check(tiny(attention="mine", position="none"), torch.device("cpu", 0))


def test_rounding_is_no_future(tiny, monkeypatch):
    monkeypatch.setattr(Mixer, "forward", convolved)
    assert causality.check(tiny(attention="mine", position="none")) == []


@pytest.mark.parametrize("wrong", ["first", "rows", "earlier text"])
def test_a_state_that_is_not_that_of_forward(tiny, monkeypatch, wrong):
    """The last output of a sum over the past, and what goes wrong with its state."""

    def decode(self, x, pos, cache):
        total = 0 if int(pos[0]) == 0 and wrong != "earlier text" else cache[0]
        sums = total + x.cumsum(1)
        cache[0].copy_(sums[:, :1] if wrong == "first" else sums[:, -1:])
        return self.out(sums)

    monkeypatch.setattr(Mixer, "forward", lambda self, x: self.out(x.cumsum(1)))
    monkeypatch.setattr(Mixer, "decode", decode)
    new_cache = lambda self, batch, *_: (torch.zeros(batch, 3 if wrong == "rows" else 1, self.n_embd),)  # noqa: E731
    monkeypatch.setattr(Mixer, "new_cache", new_cache)
    monkeypatch.setattr(Mixer, "cache_rows", 0)
    with pytest.raises(TrainingError, match=r"attention=mine.* cache (do not|fail)"):
        causality.check(tiny(attention="mine", position="none"))


def test_a_state_that_is_cut_like_rows(tiny, monkeypatch):
    """The sum of the past, [B, C], of a class that forgets to say that it is no row of a token."""

    def decode(self, x, pos, cache):
        sums = cache[0][:, None] * (pos[0] > 0) + x.cumsum(1)
        cache[0].copy_(sums[:, -1])
        return self.out(sums)

    monkeypatch.setattr(Mixer, "forward", lambda self, x: self.out(x.cumsum(1)))
    monkeypatch.setattr(Mixer, "decode", decode)
    monkeypatch.setattr(Mixer, "new_cache", lambda self, batch, *_: (torch.zeros(batch, self.n_embd),))
    with pytest.raises(TrainingError, match=r"attention=mine.* cache fail.*cache_rows"):
        causality.check(tiny(attention="mine", position="none"))
    monkeypatch.setattr(Mixer, "cache_rows", 0)
    assert causality.check(tiny(attention="mine", position="none")) == []


def test_a_run(run, monkeypatch, capsys, tmp_path):
    """It ends before its data are opened; what runs on no CPU gets a warning and goes on to its error."""
    keys = ("--attention=mine", "--position=none", "--dataset=nowhere")
    monkeypatch.setattr(Mixer, "forward", no_mask)
    with pytest.raises(SystemExit, match=r"train\.py: attention=mine .*not causal"):
        run("a", *keys)
    assert not (tmp_path / "a").exists()
    monkeypatch.setattr(Mixer, "forward", on_a_gpu)
    monkeypatch.setattr(Mixer, "flops_per_token", classmethod(lambda *arguments: 1))
    with pytest.raises(SystemExit, match="nowhere"):
        run("a", *keys)
    warning = r"warning: attention=mine .*causality.* \(RuntimeError: expected a CUDA tensor\)\n"
    assert re.search(warning, capsys.readouterr().out)
