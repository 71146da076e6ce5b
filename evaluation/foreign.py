"""Any causal language model of the transformers library, with its own tokenizer, for `evaluation.models`.

A model comes from a folder or by its name on the Hugging Face hub, owner/name. Weights are read from
safetensors files only, in float32. Python code in a folder is run with trust_remote_code=True only. The
transformers library is optional: pip install transformers.
"""

from host.disk import read_json

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from corpus import DataError, gpt2
from corpus.tokenizer import Tokenizer, build_tokenizer, valid_unicode
from evaluation import EvaluationError
from kernels.linear_cross_entropy import IGNORED
from training import hugging_face, model_folder
from training.checkpoint import CheckpointError

POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx")
NO_POSITIONS = 2048  # block_size of a model without an end, as lm-evaluation-harness has it
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_SECONDS = 5  # for its first answer
DATA = ("*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja")  # what is downloaded
CODE = ("*.py", "*.tiktoken")  # with trust_remote_code
VOCABULARIES = ("tokenizer.*", "vocab.*", "*.model", "*.tiktoken")
TEXTS = 1000  # that are encoded at once
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
    tokenizer: "ForeignTokenizer | None"
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
        built = ForeignModel(model, self.config).to(device).eval()
        built.check_causal(str(self.path))
        return built


class ForeignModel(nn.Module):
    """A causal model of transformers with those methods of `LanguageModel` that score tokens.

    theirs: the model of transformers. Sequences get `config.start` before them, where it is not None and
    they do not begin with it. So the model reads up to T + 1 tokens for T.
    """

    def __init__(self, theirs: nn.Module, config: ForeignConfig):
        super().__init__()
        self.theirs, self.config = theirs, config

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


class ForeignTokenizer(Tokenizer):
    """A tokenizer of transformers that the `tokenizers` library runs.

    theirs: what AutoTokenizer gives. As with our tokenizers, no text encodes to a special token.
    start_of_text: the token before a text, which is bos, or eos if there is no bos. end_of_text: the token
    between documents, which is eos, or bos. adds_start: whether the tokenizer itself puts bos before every
    text. Raises DataError for other kinds of tokenizers, and where there is neither bos nor eos.
    """

    kind = "transformers"
    exact = False

    def __init__(self, theirs, name: str):
        import tokenizers

        if not getattr(theirs, "is_fast", False):
            raise DataError(
                f"{name}: {type(theirs).__name__} does not say which characters its tokens stand for, so "
                "bytes cannot be counted: give the folder a tokenizer.json"
            )
        bos, eos = theirs.bos_token_id, theirs.eos_token_id
        if bos is None and eos is None:
            raise DataError(
                f"{name}: its tokenizer has no bos_token and no eos_token, so nothing can stand before "
                "a text: name one of them in tokenizer_config.json"
            )
        self.theirs = theirs
        self.start_of_text = eos if bos is None else bos
        self.end_of_text = bos if eos is None else eos
        self.adds_start = bos is not None and theirs("a")["input_ids"][:1] == [bos]
        text = theirs.backend_tokenizer.to_str()
        self.hash = hashlib.sha256(f"{bos} {eos} {text}".encode()).hexdigest()
        self.library = tokenizers.Tokenizer.from_str(text)  # a copy, whose settings are ours
        self.library.no_truncation()
        self.library.no_padding()
        self.library.encode_special_tokens = True
        # it would take spaces from the places of tokens
        self.library.post_processor = tokenizers.processors.Sequence([])
        self.vocab_size = max(self.library.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text):
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        return [ids for ids, _ in self.encode_sized(texts)]

    def encode_sized(self, texts: list[str]) -> Iterator[tuple[list[int], np.ndarray]]:
        """(tokens, the bytes of UTF-8 that each stands for, int64) of each text.

        The bytes are those of the text as it is given, whatever the tokenizer makes of it: a normalised
        character counts as it was, a space that the tokenizer adds does not, and what it drops counts with
        the next token. Of the tokens of one character, the first has its bytes. Raises DataError for a
        character without a token.
        """
        for at in range(0, len(texts), TEXTS):
            part = [valid_unicode(text) for text in texts[at : at + TEXTS]]
            for text, encoding in zip(
                part, self.library.encode_batch(part, add_special_tokens=False), strict=True
            ):
                if self.theirs.unk_token_id in (ids := encoding.ids):
                    begin, end = encoding.offsets[ids.index(self.theirs.unk_token_id)]
                    raise DataError(
                        f"the tokenizer has no token for {text[begin:end]!r} (after "
                        f"{text[max(0, begin - 30) : begin]!r}): take it out of the text, or take another "
                        "model"
                    )
                yield ids, _sizes(text, [end for _, end in encoding.offsets])

    @cached_property
    def _token_bytes(self):
        """Equal tables are equal tokenizers; the bytes of a text are counted by `encode_sized`."""
        byte_level = {letter: chr(byte) for letter, byte in gpt2.byte_letters().items()}
        letters = str.maketrans(byte_level) if "ByteLevel" in str(self.library.decoder) else None
        table = [b""] * self.vocab_size
        for piece, i in self.library.get_vocab(with_added_tokens=False).items():
            with contextlib.suppress(UnicodeEncodeError):
                table[i] = piece.translate(letters).encode("latin-1") if letters else _piece(piece)
        for i, added in self.library.get_added_tokens_decoder().items():
            table[i] = added.content.encode()
        table[self.start_of_text] = table[self.end_of_text] = b""
        return table


def _piece(piece: str) -> bytes:
    """The bytes of a SentencePiece."""
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes([int(byte[1], 16)])
    return piece.replace("\u2581", " ").encode()


def _sizes(text: str, ends: list[int]) -> np.ndarray:
    """The bytes of each token, int64. ends: the character behind each token."""
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    lengths = 1 + sum((points >= first).astype(np.int64) for first in (0x80, 0x800, 0x10000))
    before = np.concatenate(([0], np.cumsum(lengths)))
    places = np.maximum.accumulate(np.array(ends, dtype=np.int64))
    places[-1:] = len(text)
    return np.diff(before[places], prepend=0)


def takes(name: str, tokenizer: str | None = None) -> bool:
    """Whether a model is left to transformers: one of the hub by owner/name, and a folder of transformers
    with a config or a tokenizer that `training.pretrained` does not read.

    tokenizer: the name of one that is given, in place of the folder's. Raises CheckpointError for a
    config.json that cannot be read.
    """
    folder = Path(name)
    try:
        if not folder.exists():
            return bool(HUB_NAME.fullmatch(name)) and not folder.parent.exists()
    except OSError:  # a name that is too long, for one
        return False
    if (folder / "ckpt").is_dir() or not (folder / "config.json").is_file():
        return False
    content = read_json(folder / "config.json", CheckpointError)
    if "format" in content or "model_type" not in content:
        return False
    try:
        config = hugging_face.model_config(content)
    except (KeyError, TypeError, ValueError):
        return True
    if config.encoder_layers or tokenizer or (folder / model_folder.TOKENIZER).is_file():
        return False
    if not (file := folder / "tokenizer.json").is_file():
        return _has_vocabulary(folder)
    try:
        build_tokenizer(str(file), list)
    except DataError:
        return True
    return False


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
    tokenizer = None
    if _has_vocabulary(folder):
        theirs = _asked(name, transformers.AutoTokenizer.from_pretrained, folder, trust_remote_code)
        tokenizer = ForeignTokenizer(theirs, name)
    config = config.get_text_config()
    found = [size for key in POSITIONS if isinstance(size := getattr(config, key, None), int)]
    turns = any(getattr(config, key, None) for key in ("rope_parameters", "rope_scaling", "rope_theta"))
    start = tokenizer.start_of_text if tokenizer and tokenizer.adds_start else None
    any_length = turns or not found
    ours = ForeignConfig(
        model=config.model_type,
        # a stored position for the token before each sequence
        block_size=(found or [NO_POSITIONS])[0] - (start is not None and not any_length),
        vocab_size=config.vocab_size,
        any_length=any_length,
        start=start,
    )
    return ForeignSource(Path(name), folder, ours, tokenizer, trust_remote_code)


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
            "`pip install transformers`"
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
        hub.get_hf_file_metadata(hub.hf_hub_url(name, "config.json"), timeout=HUB_SECONDS)
    except Exception as error:  # of the network, the hub, an offline mode: the cache may have it
        reason = error
    try:
        keys = {"allow_patterns": patterns, "local_files_only": reason is not None}
        return Path(hub.snapshot_download(name, **keys))
    except Exception as error:  # of the network, the disk, the hub: whatever it is, there is no folder
        reason = reason or error
    said = (str(reason).splitlines() or [type(reason).__name__])[0]
    raise CheckpointError(
        f"{name} does not exist here, and could not be had from the Hugging Face hub, nor from its cache "
        f"({said}). Give a run or model folder; or, where there is network, run `hf download {name} "
        "--local-dir FOLDER`, and give that folder"
    )
