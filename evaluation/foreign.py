"""Any causal language model of the transformers library, with its own tokenizer, for `evaluation.models`.

A model comes from a folder or by its name on the Hugging Face hub, owner/name. Weights are read from
safetensors files only, in float32. Python code in a folder is run with trust_remote_code=True only. The
transformers library is optional: pip install transformers.
"""

from host.disk import read_json
from host.packages import install

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from corpus import DataError
from corpus.file_tokenizer import FileTokenizer, InexactTokenizer, from_text
from corpus.tokenizer import Tokenizer
from corpus.tokenizer_registry import build_tokenizer
from evaluation import EvaluationError
from kernels.linear_cross_entropy import IGNORED
from training import hugging_face, model_folder, pretrained
from training.checkpoint import CheckpointError

POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
NO_POSITIONS = 2048  # block_size of a model without an end, as lm-evaluation-harness has it
DATA = ("*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja")  # what is downloaded
CODE = ("*.py", "*.tiktoken")  # with trust_remote_code
VOCABULARIES = ("tokenizer.*", "vocab.*", "*.model", "*.tiktoken")
LOGITS_BYTES = 1 << 30  # float32 logits of a forward pass, unless a single sequence has more


@dataclass(frozen=True)
class ForeignConfig:
    """What evaluations ask of a model's config."""

    model: str  # model_type of transformers
    block_size: int  # tokens of the longest window, without `start`
    vocab_size: int  # rows of the embedding
    any_length: bool  # whether the model sees windows longer than block_size
    start: int | None  # token before each sequence that does not begin with it; None: there is none
    position: str = "transformers"  # not expe, so there is no inference scale
    expe_inference_scale: float = 1.0  # the only one

    def length_limits(self) -> list[str]:
        """See `ModelConfig.length_limits`."""
        return [] if self.any_length else [f"the positions of a {self.model} model"]

    def parts(self) -> dict:
        return {}


@dataclass
class ForeignSource:
    """A model whose files exist; `evaluation.models` uses it like a `pretrained.Source`."""

    path: Path  # as the user gave it
    folder: Path
    config: ForeignConfig
    theirs: object | None  # the tokenizer of transformers
    tokenizer: FileTokenizer | None  # the same one, as ours
    trust_remote_code: bool
    step: None = None
    dataset: None = None

    def build(self, device: torch.device | str = "cpu") -> "ForeignModel":
        """The model with its weights. Raises CheckpointError if transformers cannot load all of them, and
        EvaluationError if the model is not causal.
        """
        load = _transformers(self.path).AutoModelForCausalLM.from_pretrained
        keys = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
        model, info = _asked(self.path, load, self.folder, self.trust_remote_code, **keys)
        if missing := sorted(info["missing_keys"]):
            raise CheckpointError(
                f"{self.path} lacks {', '.join(missing[:3])} ({len(missing)} in all): the weights are not "
                "those of a causal language model, or a file is incomplete"
            )
        built = ForeignModel(model, self.theirs, self.config).to(device).eval()
        built.check_causal(str(self.path))
        return built


class ForeignModel(nn.Module):
    """A causal model of transformers with those methods of `LanguageModel` that score tokens.

    theirs, tokenizer: the model and the tokenizer of transformers; None: it has no tokenizer. Sequences get
    `config.start` before them, where it is not None and they do not begin with it. So the model reads up to
    T + 1 tokens for T.
    """

    def __init__(self, theirs: nn.Module, tokenizer, config: ForeignConfig):
        super().__init__()
        self.theirs, self.tokenizer, self.config = theirs, tokenizer, config

    def forward(self, tokens):
        """tokens: [B, T] int64 -> logits [B, T, vocab_size], float32"""
        return self.logits_at(tokens, torch.ones_like(tokens, dtype=torch.bool)).view(*tokens.shape, -1)

    @torch.no_grad()
    def logits_at(self, tokens, wanted):
        """See `LanguageModel.logits_at`: tokens [B, T] int64, wanted [B, T] bool -> [wanted, vocab_size]"""
        return torch.cat(list(self._logits(tokens, wanted)))

    @torch.no_grad()
    def token_losses(self, tokens, targets):
        """See `LanguageModel.token_losses`: [B, T] int64 twice -> nats [B, T] float32, 0 at IGNORED."""
        scored = targets != IGNORED
        losses, wanted = torch.zeros(targets.shape, device=targets.device), targets[scored]
        parts, at = [], 0
        for logits in self._logits(tokens, scored):
            parts.append(F.cross_entropy(logits, wanted[at : at + len(logits)], reduction="none"))
            at += len(logits)
        losses[scored] = torch.cat(parts)
        return losses

    def _logits(self, tokens, wanted) -> Iterator[torch.Tensor]:
        """The float32 logits of `logits_at` in parts: those of several sequences each."""
        if self.config.start is not None:
            lacking = tokens[:, :1] != self.config.start
            first, none = tokens.new_full((len(tokens), 1), self.config.start), torch.zeros_like(lacking)
            last = tokens[:, -1:]  # any token: nothing sees it
            tokens = torch.where(lacking, torch.cat((first, tokens), 1), torch.cat((tokens, last), 1))
            wanted = torch.where(lacking, torch.cat((none, wanted), 1), torch.cat((wanted, none), 1))
        rows = max(1, LOGITS_BYTES // (4 * tokens.shape[1] * self.config.vocab_size))
        for part, places in zip(tokens.split(rows), wanted.split(rows), strict=True):
            yield self.theirs(input_ids=part, use_cache=False).logits[places].float()

    def check_length(self, length: int):
        """See `LanguageModel.check_length`."""
        if length > self.config.block_size and (limits := self.config.length_limits()):
            raise ValueError(
                f"{length} tokens do not fit into block_size={self.config.block_size}, "
                f"which is the end for {' and '.join(limits)}"
            )

    def check_causal(self, name: str):
        """Raises EvaluationError if a later token changes what precedes it, as in a model like BERT."""
        device = next(self.parameters()).device
        tokens = torch.arange(8, device=device).expand(2, 8) % self.config.vocab_size
        tokens = torch.cat((tokens[:, :7], tokens.new_tensor([[0], [self.config.vocab_size - 1]])), 1)
        one, other = self(tokens)[:, :7]
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())):
            raise EvaluationError(
                f"{name}: the prediction of a token depends on tokens after it: this is no causal language "
                "model"
            )

    def parameter_count(self) -> int:
        """Parameters as stored."""
        return sum(p.numel() for p in self.parameters())


def file_tokenizer(theirs, name: str) -> FileTokenizer:
    """A tokenizer of transformers that the `tokenizers` library runs, as one of ours.

    theirs: what AutoTokenizer gives. The token before a text is bos, or eos if there is no bos. Between
    documents stands eos, or bos. Raises DataError for other kinds of tokenizers, and where there is
    neither.
    """
    if not getattr(theirs, "is_fast", False):
        raise DataError(
            f"{name}: {type(theirs).__name__} does not say which characters its tokens stand for, so "
            "bytes cannot be counted: give the folder a tokenizer.json"
        )
    if theirs.bos_token is None and theirs.eos_token is None:
        raise DataError(
            f"{name}: its tokenizer has no bos_token and no eos_token, so nothing can stand before "
            "a text: name one of them in tokenizer_config.json"
        )
    text = theirs.backend_tokenizer.to_str()
    tokenizer = from_text(text, theirs.eos_token or theirs.bos_token, name)
    if theirs.bos_token is not None:
        tokenizer.start_of_text = theirs.bos_token_id
        tokenizer.hash = hashlib.sha256(f"{theirs.bos_token_id} {tokenizer.hash}".encode()).hexdigest()
    if isinstance(tokenizer, InexactTokenizer):
        tokenizer.unknown = theirs.unk_token_id
    return tokenizer


def takes(name: str, tokenizer: str | None = None) -> bool:
    """Whether a model is left to transformers: a folder in its format, or one of the hub, with a config
    that `training.pretrained` does not read, without a tokenizer.json, or with one that puts tokens such as
    <s> around every text, which our models would not do.

    tokenizer: the name of one that is given, in place of the model's. Raises CheckpointError or DataError
    for files that cannot be read.
    """
    folder, on_hub = Path(name), pretrained.on_hub(name)
    if on_hub:
        find = functools.partial(pretrained.download, name)
    elif os.path.isdir(folder / "ckpt") or os.path.isfile(folder / model_folder.TOKENIZER):
        return False
    else:

        def find(file):
            return folder / file if os.path.isfile(folder / file) else None

    try:
        config = find("config.json")
    except CheckpointError:  # `pretrained.open_source` says why
        return False
    content = read_json(config, CheckpointError) if config else {}
    if "format" in content or "model_type" not in content:
        return False
    try:
        ours = hugging_face.model_config(content)
    except (KeyError, TypeError, ValueError):
        return True
    if ours.encoder_layers or tokenizer:
        return False
    if (file := find("tokenizer.json")) is None:
        return on_hub or _has_vocabulary(folder)
    find("tokenizer_config.json")  # beside it, and names the end token
    return build_tokenizer(str(file), list).adds_tokens


def open_source(name: str, trust_remote_code: bool = False) -> ForeignSource:
    """A model that `takes` is true of. Raises CheckpointError, DataError or EvaluationError."""
    transformers = _transformers(name)
    folder = Path(name) if Path(name).exists() else _from_hub(name, trust_remote_code)
    if not (folder / "model.safetensors").is_file() and not (folder / model_folder.INDEX).is_file():
        raise CheckpointError(
            f"{name} has no model.safetensors and no {model_folder.INDEX}: weights are read from "
            "safetensors files only, because files such as pytorch_model.bin can hold code"
        )
    content = read_json(folder / "config.json", CheckpointError)
    if content.get("model_type") not in transformers.CONFIG_MAPPING:
        with contextlib.suppress(Exception):  # it is not installed, or not for this machine
            import fla  # noqa: F401 (tells transformers of the models of flash-linear-attention)
    config = _asked(name, transformers.AutoConfig.from_pretrained, folder, trust_remote_code)
    remote = trust_remote_code and "AutoModelForCausalLM" in content.get("auto_map", {})
    known = remote or type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if not known or getattr(config, "is_encoder_decoder", False):
        raise EvaluationError(
            f"{name}: transformers has no causal language model of model_type={config.model_type!r}"
        )
    theirs = tokenizer = start = None
    if _has_vocabulary(folder):
        theirs = _asked(name, transformers.AutoTokenizer.from_pretrained, folder, trust_remote_code)
        tokenizer = file_tokenizer(theirs, name)
        if theirs.bos_token is not None and theirs("a")["input_ids"][:1] == [theirs.bos_token_id]:
            start = theirs.bos_token_id
    config = config.get_text_config()
    found = [size for key in POSITIONS if isinstance(size := getattr(config, key, None), int)]
    turns = any(getattr(config, key, None) for key in ("rope_parameters", "rope_scaling", "rope_theta"))
    any_length = turns or not found
    ours = ForeignConfig(
        model=config.model_type,
        # a stored position for the token before each sequence
        block_size=(found or [NO_POSITIONS])[0] - (start is not None and not any_length),
        vocab_size=config.vocab_size,
        any_length=any_length,
        start=start,
    )
    return ForeignSource(Path(name), folder, ours, theirs, tokenizer, trust_remote_code)


def tokenizer_of(source: ForeignSource, name: str | None, end_token: str | None = None) -> Tokenizer:
    """The source's tokenizer, or the one of that name for a source without one. Raises DataError where
    there is none or two.
    """
    if name is None:
        if source.tokenizer is None:
            raise DataError(
                f"{source.path} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json), so "
                "nothing says what its tokens mean: put its files there"
            )
        return source.tokenizer
    given = build_tokenizer(name, list, end_token)
    if source.tokenizer is not None and not source.tokenizer.same_tokens(given):
        raise DataError(
            f"{source.path} has a tokenizer of its own, and --tokenizer={name} would mean other texts: "
            "leave it out"
        )
    return given


def _has_vocabulary(folder: Path) -> bool:
    return any(True for pattern in VOCABULARIES for _ in folder.glob(pattern))


def _transformers(name: str | Path):
    try:
        import transformers
    except ImportError:
        raise EvaluationError(
            f"{name} is a model that transformers reads, and transformers is not installed: run "
            f"`{install('transformers')}`"
        ) from None
    return transformers


def _asked(name: str | Path, load: Callable, folder: Path, trust_remote_code: bool, **keys):
    """load(folder), with what it raises as CheckpointError."""
    try:
        return load(str(folder), trust_remote_code=trust_remote_code, local_files_only=True, **keys)
    except Exception as error:  # of transformers, of the folder's files, of packages that they need
        said = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in said and not trust_remote_code:
        raise CheckpointError(
            f"{name} needs Python code that comes with it, which can do anything on this machine: read it, "
            "and give --trust_remote_code=True if you trust it"
        )
    raise CheckpointError(f"{name} cannot be read by transformers: {said[:300]}")


def _from_hub(name: str, trust_remote_code: bool) -> Path:
    """The folder of a model in the hub's cache, where it is downloaded first."""
    import huggingface_hub as hub

    reason, patterns = None, DATA + (CODE if trust_remote_code else ())
    try:  # one question, because the download itself tries for long before it gives up
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"), timeout=pretrained.HUB_SECONDS)
    except Exception as error:  # of the network, the hub, an offline mode: the cache may have it
        reason = error
    try:
        keys = {"allow_patterns": patterns, "local_files_only": reason is not None}
        return Path(hub.snapshot_download(name, **keys))
    except Exception as error:  # of the network, the disk, the hub: whatever it is, there is no folder
        reason = reason or error
    said = (str(reason).splitlines() or [type(reason).__name__])[0]
    raise CheckpointError(
        f"{name}: its files could not be had from the Hugging Face hub, nor from its cache here ({said}). "
        f"Where there is network, run `hf download {name} --local-dir FOLDER`, and give that folder"
    )
