"""A mixer of one's own: one class that says nothing but its equation works in every place."""

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
import torch
from torch import nn

import config_keys
from config_keys import Above, Below, names
from layers import ATTENTION, FFN, POSITION
from layers.feedforward import HiddenWidth
from layers.position import NoPosition
from layers.protocol import ChannelMixer, TokenMixer
from model import GPT, cache_bytes_per_token, flops_per_token, parameter_counts
from models.architecture import Core, ModelConfig, declared


class Decaying(TokenMixer):
    """A gated moving average: y_t = scale * sum_s exp(-(t - s)) W x_s; a norm, a buffer and a parameter."""

    def __init__(self, config, layer=0):
        super().__init__(config, layer)
        self.map = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.norm = nn.GroupNorm(1, config.n_embd)
        self.scale = nn.Parameter(torch.full((config.n_embd,), 3.0 + layer))
        self.register_buffer("rate", torch.tensor(0.5))

    def forward(self, x):
        distance = torch.arange(x.shape[1], device=x.device)
        distance = distance[:, None] - distance
        weights = torch.where(distance >= 0, (-self.rate * distance).exp(), 0)
        mixed = (weights.to(x.dtype) @ self.map(x)) * self.scale
        return self.norm(mixed.flatten(0, 1)).view(x.shape)


class Bilinear(ChannelMixer):
    Keys = HiddenWidth

    def __init__(self, config):
        super().__init__(config)
        hidden = config.ffn_hidden or config.n_embd
        self.up = nn.Linear(config.n_embd, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, config.n_embd, bias=False)

    def forward(self, x):
        first, second = self.up(x).chunk(2, dim=-1)
        return self.down(first * second)


class Forgotten(ChannelMixer):
    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(torch.empty(config.n_embd))

    def forward(self, x):
        return x * self.scale


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(ATTENTION, "decaying", Decaying)
    monkeypatch.setitem(FFN, "bilinear", Bilinear)
    monkeypatch.setitem(FFN, "forgotten", Forgotten)


@pytest.fixture
def mine(tiny):
    return tiny(attention="decaying", ffn="bilinear", position="none", ffn_hidden=7)


def on_meta(config):
    with torch.device("meta"):
        return GPT(config)


@pytest.mark.parametrize("seed", range(3))
def test_built_without_memory_it_starts_with_its_constructors_values(mine, seed):
    torch.manual_seed(seed)
    model = on_meta(mine).to_empty(device="cpu").init_weights()
    for layer, block in enumerate(model.blocks):
        assert (block.attention.scale == 3 + layer).all()
        assert (block.attention.norm.weight == 1).all()
        assert (block.attention.norm.bias == 0).all()
        assert block.attention.rate == 0.5
        assert block.attention.map.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert model(torch.zeros(1, 3, dtype=torch.int64)).isfinite().all()


def test_a_parameter_that_nobody_draws_stops_the_start_by_its_name(tiny):
    config = tiny(ffn="forgotten")
    for model in (on_meta(config).to_empty(device="cpu"), GPT(config)):
        with pytest.raises(ValueError, match=r"^nothing .*blocks\.0\.ffn\.scale"):
            model.init_weights()


def test_a_run_with_such_a_parameter_ends_with_one_message(run):
    with pytest.raises(SystemExit, match=r"train\.py: .*nothing .*blocks\.0\.ffn\.scale"):
        run("a", "--ffn=forgotten")


def test_a_partial_init_weights_leaves_the_rest_to_the_constructor(mine, monkeypatch):
    monkeypatch.setattr(
        Decaying, "init_weights", lambda self: nn.init.zeros_(self.map.weight), raising=False
    )
    attention = on_meta(mine).to_empty(device="cpu").init_weights().blocks[1].attention
    assert (attention.map.weight == 0).all()
    assert (attention.scale == 4).all()


@torch.no_grad()
def test_decoding_equals_the_forward_pass(mine):
    model = GPT(mine).init_weights().eval()
    tokens = torch.randint(0, 100, (3, 17))
    whole, cache, end = model(tokens), model.new_cache(3), 0
    for piece in tokens.split([5, 1, 8, 1, 2], dim=1):
        end += piece.shape[1]
        torch.testing.assert_close(model.decode(piece, cache), whole[:, end - 1], rtol=1e-4, atol=1e-5)


def test_layers_that_depend_on_their_number_are_counted_one_by_one(tiny, monkeypatch):
    class Hybrid(TokenMixer):
        def __init__(self, config, layer=0):
            super().__init__(config, layer)
            self.layer, width = layer, config.n_embd
            hidden = 2 * width if layer % 3 == 2 else width
            self.maps = nn.Sequential(nn.Linear(width, hidden), nn.Linear(hidden, width))
            self.passes = 1 + layer % 2

        def forward(self, x):
            for _ in range(self.passes):
                x = self.maps(x)
            return x

        def new_cache(self, batch, length, device, dtype):
            return (torch.empty(batch, length, 24 + self.layer, device=device, dtype=dtype),)

    monkeypatch.setitem(ATTENTION, "hybrid", Hybrid)
    config = tiny(attention="hybrid", ffn="mlp", position="none", n_layer=5)
    counts = parameter_counts(config)
    assert counts["attention"] == 4 * 1_200 + 2_376
    assert sum(counts.values()) == GPT(config).parameter_count()
    # passes, of which the third is twice as wide
    attention = (1 + 2 + 2 + 2 + 1) * 2 * 2 * 24 * 24
    ffn = 5 * FFN["mlp"].flops_per_token(config, config.block_size)
    assert flops_per_token(config) == attention + ffn + 2 * 24 * config.padded_vocab_size
    assert cache_bytes_per_token(config) == 2 * sum(24 + layer for layer in range(5))


def test_a_part_that_miscounts_its_parameters(tiny, monkeypatch):
    monkeypatch.setattr(Decaying, "parameter_count", classmethod(lambda cls, config: 7))
    with pytest.raises(ValueError, match=r"blocks\.0\.attention.* 648 .*Decaying\.parameter_count.* 7\b"):
        GPT(tiny(attention="decaying", position="none"))

    class Table(NoPosition):
        def __init__(self, config):
            super().__init__(config)
            self.table = nn.Embedding(config.block_size, config.n_embd)

    monkeypatch.setitem(POSITION, "table", Table)
    with pytest.raises(ValueError, match=r"position.* 408 .*Table\.parameter_count.* 0\b"):
        GPT(tiny(position="table"))


def test_accounts_are_counted(mine):
    model = GPT(mine)
    assert sum(parameter_counts(mine).values()) == model.parameter_count()
    width, hidden, layers = 24, 7, 2
    maps = layers * (width * width + 3 * width * hidden)
    average = layers * width * 17  # of 17 tokens
    assert flops_per_token(mine, 17) == 2 * (maps + average + width * mine.padded_vocab_size)


def test_keys_that_no_part_reads():
    parts = {"attention": "decaying", "ffn": "bilinear", "position": "none", "ffn_hidden": 7}
    assert ModelConfig(**parts).unused_keys() == []
    assert set(ModelConfig(**parts, cf_depth=5, n_kv_head=1).unused_keys()) == {"cf_depth=5", "n_kv_head=1"}


class Reader:
    """A config that notes what is read of it."""

    def __init__(self, config):
        self.config, self.read = config, set()

    def __getattr__(self, key):
        if isinstance(of_class := getattr(type(self.config), key, None), property):
            return of_class.fget(self)  # what it reads counts
        self.read.add(key)
        return getattr(self.config, key)


@pytest.mark.parametrize("registry", [ATTENTION, FFN, POSITION])
def test_a_part_lists_the_keys_that_it_reads(registry, tiny):
    """Otherwise ablate.py would not vary them, and a key that matters would be called without effect."""
    for name, part in registry.items():
        for control in ("none", "zero", "constant"):
            seen = Reader(tiny(cf_control=control, token_shift=True, cattn_content=True))
            part(seen)
            part.parameter_count(seen)
            assert seen.read <= {*names(part.Keys), *names(Core)}, name


def test_a_key_that_does_not_exist_is_a_mistake(mine, monkeypatch):
    class Keys:
        ffn_hiden: int = 3

    monkeypatch.setattr(Bilinear, "Keys", Keys)
    (told,) = mine.check()
    assert "Keys is no dataclass" in told
    monkeypatch.setattr(Bilinear, "Keys", dataclass(Keys))
    assert "Bilinear.Keys declares ffn_hiden" in mine.check()[0]


def test_keys_of_a_module_of_ones_own(monkeypatch):
    """They join those of all models, with their ranges; what is written wrongly is said and left out."""

    @dataclass
    class Keys(HiddenWidth):
        power: Annotated[float, Above(0), Below(2)] = 1.0
        kind: Literal["a", "b"] | None = None

    monkeypatch.setattr(Bilinear, "Keys", Keys)
    monkeypatch.setitem(FFN, "bilinear", Bilinear)
    config_class = dataclass(type("Config", tuple(reversed(declared())), {}))
    assert config_keys.mistakes(config_class(power=2.0)) == ["power must be above 0 and below 2, not 2.0"]
    assert {"power", "kind", "n_embd", "cf_depth"} <= {*names(config_class)}

    @dataclass
    class Wrong(HiddenWidth):
        rope_base: (Above(0), Below(1)) = 0.5
        power: Annotated[float, 0, Below] = 0.5
        untyped = 3

    told = " ".join(config_keys.wrong_declarations(Wrong))
    for what in ("rope_base is of type", "power: 0 is no mark", "untyped has no type"):
        assert what in told
    monkeypatch.setattr(Bilinear, "Keys", Wrong)
    assert Wrong not in declared()


def test_two_parts_cannot_declare_the_same_key():
    @dataclass
    class Keys:
        rope_base: float = 1.0

    config_class = dataclass(type("Config", (Keys, *reversed(declared())), {}))
    (told,) = config_keys.declared_twice(config_class)
    assert "both declare the key rope_base" in told


def test_it_takes_no_more_tokens_than_it_says(mine):
    model = GPT(mine).init_weights()
    with pytest.raises(ValueError, match=r"18 tokens .*attention=decaying"):
        model(torch.zeros(1, 18, dtype=torch.int64))


def test_it_trains_and_goes_on(run):
    keys = ("--attention=decaying", "--ffn=bilinear", "--position=none", "--eval_interval=3")
    run("a", *keys, "--max_iters=3")
    _, records = run("a", *keys, "--max_iters=8", "--resume=True")
    losses = [record["loss"] for record in records if "loss" in record]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


def test_every_mixer_follows_the_protocol():
    for registry, base in ((ATTENTION, TokenMixer), (FFN, ChannelMixer)):
        assert all(issubclass(mixer, base) for mixer in registry.values())
