"""A model to be measured, with its tokenizer and the facts that the tables show."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from corpus.tokenizer import Tokenizer
from corpus.tokenizer_registry import build_tokenizer
from evaluation import EvaluationError, foreign
from evaluation.foreign import ForeignConfig, ForeignModel, ForeignSource
from models.architecture import ModelConfig
from models.language_model import LanguageModel
from training import checkpoint, pretrained
from training.hardware import autocast, choose_device, choose_dtype


@dataclass
class Loaded:
    """A model in evaluation mode with float32 weights. `end_of_text` is the token before every document."""

    name: str  # as tables call it
    path: Path  # of the checkpoint or model folder
    model: LanguageModel | ForeignModel
    tokenizer: Tokenizer
    config: ModelConfig | ForeignConfig
    end_of_text: int
    device: torch.device
    dtype: str  # dtype of matrix products
    step: int | None = None  # of a run
    tokens_seen: int | None = None  # in training, where it is known
    parameters: int = 0

    @property
    def block_size(self) -> int:
        return self.config.block_size

    def autocast(self):
        """The autocast context in which the model must be called."""
        return autocast(self.device, self.dtype)

    def facts(self) -> dict:
        """Facts about the model for tables and JSON."""
        return {
            "path": str(self.path),
            "parameters": self.parameters,
            "block_size": self.block_size,
            "vocab_size": self.config.vocab_size,
            "model": self.config.model,
            **{part: getattr(self.config, part) for part in self.config.parts()},
            "step": self.step,
            "tokens_seen": self.tokens_seen,
            "tokenizer": {"kind": self.tokenizer.kind, "hash": self.tokenizer.hash},
        }


@dataclass
class Opened:
    """A model whose files exist and fit together; its weights are not read yet."""

    name: str
    source: pretrained.Source | ForeignSource
    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig | ForeignConfig:
        return self.source.config

    def load(
        self,
        device: str | torch.device = "cpu",
        dtype: str = "float32",
        expe_inference_scale: float | None = None,
    ) -> Loaded:
        """See `load`."""
        source = self.source
        if expe_inference_scale is not None:
            check_scale(self.name, self.config, expe_inference_scale)
            config = dataclasses.replace(self.config, expe_inference_scale=expe_inference_scale)
            source = dataclasses.replace(source, config=config)
        device = choose_device(device) if isinstance(device, str) else device
        if isinstance(source, ForeignSource):
            model = source.build(device)
        else:
            model = pretrained.build(source, device).eval()
        return Loaded(
            name=self.name,
            path=source.path,
            model=model,
            tokenizer=self.tokenizer,
            config=source.config,
            end_of_text=self.tokenizer.start_of_text,
            device=device,
            dtype=choose_dtype(dtype, device),
            step=source.step,
            tokens_seen=_tokens_seen(source),
            parameters=model.parameter_count(),
        )


def open_model(
    path: str,
    which: str = "best",
    tokenizer: str | None = None,
    of_pairs: bool = False,
    end_token: str | None = None,
    trust_remote_code: bool = False,
) -> Opened:
    """Checks the arguments of `load` quickly, to find mistakes before any work starts.

    of_pairs: whether the model will read pairs. Others refuse one with an encoder. end_token: of
    `tokenizer`, see `build_tokenizer`. trust_remote_code: see `load`.
    """
    if not of_pairs and foreign.takes(path, tokenizer):
        source = foreign.open_source(path, trust_remote_code)
        reader = foreign.tokenizer_of(source, tokenizer, end_token)
    else:
        source = pretrained.open_source(path, which)
        if not of_pairs:
            pretrained.check_no_encoder(source, "evaluate.py")
        reader = _tokenizer(source, tokenizer, end_token)
    if reader.vocab_size > source.config.vocab_size:
        raise EvaluationError(
            f"{path}: its tokenizer has {reader.vocab_size:,} tokens, the model only "
            f"{source.config.vocab_size:,}"
        )
    return Opened(_name(Path(path)), source, reader)


def load(
    path: str,
    device: str | torch.device = "cpu",
    dtype: str = "float32",
    which: str = "best",
    tokenizer: str | None = None,
    expe_inference_scale: float | None = None,
    trust_remote_code: bool = False,
) -> Loaded:
    """Loads a model.

    path: a run folder or checkpoint of train.py, a model folder (ours, or Hugging Face's GPT-2 and Llama),
    or a name on the hub; or any causal language model of transformers. device: auto, cpu, cuda or a
    torch.device. dtype: auto, float32, bfloat16 or float16. which: the checkpoint of a run folder, best or
    last. tokenizer: a name as in prepare.py, for a model without a tokenizer of its own.
    expe_inference_scale: replaces the model's. trust_remote_code: whether Python code in a folder of
    transformers may run. Raises CheckpointError, DataError, DeviceError or EvaluationError.
    """
    opened = open_model(path, which, tokenizer, trust_remote_code=trust_remote_code)
    return opened.load(device, dtype, expe_inference_scale)


def different_tokenizers(models: Iterable[Opened]) -> str | None:
    """The tokenizers of the models, each with the first model that has it; None if all have the same."""
    firsts: list[Opened] = []
    for model in models:
        if not any(model.tokenizer.same_tokens(first.tokenizer) for first in firsts):
            firsts.append(model)
    if len(firsts) < 2:
        return None
    tokenizers = [(model.name, model.tokenizer) for model in firsts]
    told = [f"{name}: {t.kind}, {t.vocab_size:,} tokens, {t.hash[:8]}" for name, t in tokenizers]
    if not all(tokenizer.exact for _, tokenizer in tokenizers):
        told.append("what an inexact one loses of a text, such as capitals, costs its model no bits")
    return "; ".join(told)


def check_scale(name: str, config: ModelConfig, scale: float):
    """Raises EvaluationError if the model's positional encoding has no inference scale."""
    if scale != config.expe_inference_scale and config.position not in ("expe", "exqpe"):
        raise EvaluationError(
            f"{name}: a scale of {scale} multiplies the columns of position=expe and exqpe, and this model "
            f"has position={config.position}"
        )


def _tokenizer(source: pretrained.Source, name: str | None, end_token: str | None) -> Tokenizer:
    if name is None:
        return pretrained.tokenizer_of(source)
    tokenizer = build_tokenizer(name, list, end_token)
    pretrained.check_tokenizer(source, tokenizer)
    return tokenizer


def _name(path: Path) -> str:
    """The name of the run's or model's folder; for a checkpoint, of the run and the step."""
    if checkpoint.is_checkpoint(path):
        return f"{path.absolute().parents[1].name}/{path.stem}"
    return path.name or path.absolute().name


def _tokens_seen(source: pretrained.Source) -> int | None:
    if not checkpoint.is_checkpoint(source.path):
        return None
    content = checkpoint.load(source.path, mmap=True, check=False)
    return content.get("tokens", content["samples"] * source.config.block_size)
