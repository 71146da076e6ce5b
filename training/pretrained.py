"""Models to start from, to sample, to evaluate, to export: our runs, exported folders, Hugging Face's
GPT-2 and Llama in a folder or on the hub.

`load` gives model and tokenizer in one call. Its steps: `open_source` takes any of them, `build` makes the
model, `tokenizer_of` what reads its tokens. All weights are float32 here, under our names.
"""

from host.disk import absence, read_json

import contextlib
import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from corpus import DataError, files, gpt2, mixture
from corpus.tokenizer import Tokenizer
from corpus.tokenizer_registry import build_tokenizer, end_of_text_of, from_json
from models.architecture import ModelConfig, model_config
from models.kinds import built
from models.language_model import LanguageModel
from remote_code import packing, trial
from training import checkpoint, hugging_face, model_card, model_folder
from training.checkpoint import CheckpointError
from training.config import TrainConfig
from training.hugging_face_tokenizer import tokenizer_files

# n_layer, n_head and n_embd of the models that the hub has by these names. All others need their OWNER/NAME
HUB = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024)}
HUB |= {"gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}
OWNER = "openai-community"  # of their repositories
HUB_SECONDS = 5  # for its first answer
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
TOKENIZER_FILES += ("special_tokens_map.json", "chat_template.jinja")
GENERATION = "generation_config.json"  # what `generate` of transformers reads beside config.json
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
OPTIONAL = (model_folder.INDEX, "tokenizer_config.json")  # files that a model may do without
FORMAT = "cofrgenet model 1"
PREFIX = "model."  # of our names in exported weights: transformers has our model in this attribute


@dataclass
class Source:
    """A model to start from; `read` gives its weights, or raises CheckpointError."""

    path: Path
    config: ModelConfig
    read: Callable[[], dict[str, torch.Tensor]]
    tokenizer: dict | None = None  # as Tokenizer.to_json gives it; None: not known
    step: int | None = None  # of a run
    dataset: str | None = None  # that a run was trained on
    about: dict | None = None  # of a run's checkpoint: what a model card says of it


def load(
    name: str | Path, which: str = "best", device: torch.device | str = "cpu"
) -> tuple[LanguageModel, Tokenizer]:
    """(model in evaluation mode, its tokenizer) of a run folder, checkpoint, model folder or hub name.

    which: the checkpoint of a run folder, `best` (lowest validation loss) or `last`. Raises ValueError for
    another `which`, CheckpointError or DataError where there is no such model.
    """
    if which not in ("best", "last"):
        raise ValueError(f"which must be best or last, not {which!r}")
    source = open_source(str(name), which)
    tokenizer = tokenizer_of(source)  # first: it is quick, and may fail
    return build(source, device).eval(), tokenizer


def open_source(name: str, which: str = "best", planned: bool = False) -> Source:
    """A run folder or checkpoint of train.py, a model folder, or a GPT-2 or Llama on the hub, without its
    weights.

    name: on the hub one of HUB, or OWNER/NAME. A run or model folder of that name comes before the hub.
    planned: the weights will not be read, so that one of HUB needs no network. Raises CheckpointError.
    """
    path = Path(name)
    try:
        is_run, is_folder = (path / "ckpt").is_dir(), (path / "config.json").is_file()
    except OSError as error:
        raise CheckpointError(f"{name} cannot be opened ({error.strerror}); give another path") from None
    if name in HUB and not (is_run or is_folder):
        return _planned(name) if planned else _from_hub(name)
    content = None
    if is_folder and not is_run:
        content = read_json(path / "config.json", CheckpointError)
    if content is None:
        if not path.exists():
            absent = (
                f"{path} {absence(path)}: give a run folder or checkpoint of train.py, a folder of "
                f"config.json and model.safetensors, one of {', '.join(HUB)}, or the hub's OWNER/NAME"
            )
            if not on_hub(name):
                raise CheckpointError(absent)
            try:
                return _from_hub(name)
            except CheckpointError as error:
                raise CheckpointError(f"{absent}\nOf the hub: {error}") from None
        return _run(checkpoint.find(path, which))
    if "format" in content:
        return _ours(path, content)
    if "model_type" not in content and {"dataset", "n_layer", "n_embd"} <= content.keys():
        raise CheckpointError(
            f"{path} holds the config.json of a run but no weights: {path / 'ckpt'} with "
            "its checkpoints is missing; put that folder back, or give another run"
        )
    config = _foreign_config(content, path / "config.json")
    model_folder.check_weights_exist(path, config)

    def read():
        return hugging_face.our_weights(model_folder.read_tensors(path), config, path)

    return Source(path, config, read, model_folder.read_tokenizer(path))


def check_no_encoder(source: Source, verb: str):
    """Raises CheckpointError for an encoder-decoder, which `verb` cannot do anything with."""
    if source.config.encoder_layers:
        raise CheckpointError(
            f"{source.path} has an encoder (encoder_layers={source.config.encoder_layers}) and reads "
            f"pairs, which {verb} does not have: take translate.py, or a model without an encoder"
        )


def build(source: Source, device: torch.device | str = "cpu") -> LanguageModel:
    """The source's model with its weights; raises CheckpointError."""
    weights = read_checked(source)
    with torch.device("meta"):
        model = built(source.config)
    model.to_empty(device="cpu").init_weights()
    model.load_state_dict(weights)
    return model.to(device)


def read_checked(source: Source) -> dict[str, torch.Tensor]:
    """The source's weights, which are those that its config names; raises CheckpointError."""
    weights = source.read()
    checkpoint.check_layers(source.config, weights, source.path)
    try:
        with torch.device("meta"):
            model = built(source.config)
    except ValueError as error:
        raise CheckpointError(f"{source.path}: {error}") from None
    checkpoint.check_weights(model, weights, source.path)
    return weights


def on_hub(name: str) -> bool:
    """Whether a name is the hub's OWNER/NAME; a folder of that name, or called OWNER, comes before it."""
    return not files.looks_local(name) and re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def tokenizer_of(source: Source) -> Tokenizer:
    """For texts: ours if it is known, otherwise the folder's tokenizer.json, whose texts begin as it says;
    raises DataError.
    """
    if source.tokenizer is not None:
        return from_json(source.tokenizer)
    path = source.path / "tokenizer.json"
    if not path.is_file():
        raise DataError(
            f"{source.path} has no tokenizer.json, so nothing says what its tokens mean. Save one there: "
            f"AutoTokenizer.from_pretrained('NAME').save_pretrained('{source.path}') of transformers, with "
            "the NAME or folder of the model that has it"
        )
    tokenizer = build_tokenizer(str(path), list)
    if tokenizer.begins_with is not None:  # such as Llama's
        tokenizer.start_of_text = tokenizer.begins_with
    return tokenizer


def tokenizer_option(source: Source) -> str | None:
    """What --tokenizer takes for the source's tokenizer: gpt2, bytes or the path of its tokenizer.json.

    None: it is not known, or no file holds it (`export` writes one).
    """
    known = source.tokenizer or {}
    if known.get("kind") in ("gpt2", "bytes"):
        return known["kind"]
    folders = [source.path]
    if source.dataset is not None:
        folders += map(Path, mixture.parse(source.dataset)[0])
    for path in (folder / "tokenizer.json" for folder in folders):
        if path.is_file():
            with contextlib.suppress(DataError):
                if known.get("hash") in (None, build_tokenizer(str(path), list).hash):
                    return str(path)
    return None


def check_tokenizer(source: Source, tokenizer: Tokenizer):
    """Raises CheckpointError where the source's tokens are known to mean something else than the data's."""
    if source.tokenizer is not None and source.tokenizer["hash"] == tokenizer.hash:
        return
    try:
        own = tokenizer_of(source)
    except DataError:
        if source.tokenizer is None:
            return  # there is none, or one that is not read here: nothing is known
        raise
    if not own.same_tokens(tokenizer):
        names = [f"bpe:{t.vocab_size}" if t.kind == "bpe" else t.kind for t in (own, tokenizer)]
        if names[0] == names[1]:  # trained on other texts
            names = [f"{name} {t.hash[:8]}" for name, t in zip(names, (own, tokenizer), strict=True)]
        raise CheckpointError(
            f"{source.path} was trained with another vocabulary (tokenizer {names[0]}) than the "
            f"data set's ({names[1]}), and its embedding would mean other tokens: prepare the data "
            "with its tokenizer"
        )


@dataclass
class Exported:
    """What `export` has written."""

    architecture: str  # as transformers names it
    packages: set[str] | None  # that code in the folder imports; None: there is no code


def export(source: Source, folder: Path, load: bool = False) -> Exported:
    """Write a model folder that is new or empty, whole or not at all. transformers loads it: as GPT-2 or
    Llama where it is one, otherwise with the code of the model, which the folder then holds.

    load: see in a process of its own whether transformers finds our loss. Raises CheckpointError where
    something is there already, PackingError where the code cannot be packed, DataError where there is no
    tokenizer, OSError where the disk does not take it, TrialError where transformers does not load it.
    """
    if source.config.model != "gpt":
        raise CheckpointError(
            f"{source.path} is of model={source.config.model}: transformers has no such class, and the "
            "code that is packed for it is that of model=gpt. Our own scripts read the run folder"
        )
    check_no_encoder(source, "export.py")
    if source.tokenizer is not None and source.tokenizer["kind"] == "mqar":
        raise CheckpointError(
            f"{source.path} reads the symbols of MQAR, no text that transformers could encode. Our own "
            "scripts read the run folder"
        )
    config, trial_of = source.config, None
    if load:
        model = build(source).eval()
        weights = model.state_dict()
        keys = {"vocab_size": config.vocab_size, "length": min(trial.TOKENS, config.block_size)}
        trial_of = functools.partial(trial.load, model=model, **keys)
    else:
        weights = read_checked(source)
    model_folder.check_finite(weights, source.path)
    end = None if source.tokenizer is None else end_of_text_of(source.tokenizer)
    content = hugging_face.config_json(config, end)
    files, packages = {}, None
    if content is not None:
        tensors = hugging_face.their_weights(weights, config)
    else:
        files, packages = packing.packed(itertools.chain.from_iterable(config.parts().values()))
        tensors = {f"{PREFIX}{name}": weight.contiguous() for name, weight in weights.items()}
        content = {"format": FORMAT, "step": source.step, "model": dataclasses.asdict(config)}
        content |= {**packing.ENTRIES, "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    if source.tokenizer is not None:
        files[model_folder.TOKENIZER] = json.dumps(source.tokenizer) + "\n"
        files |= tokenizer_files(from_json(source.tokenizer), config.block_size, config.vocab_size)
    else:  # where texts end, only the folder says
        if (source.path / "config.json").is_file():
            saved = read_json(source.path / "config.json", CheckpointError)
            content |= {key: saved[key] for key in ENDS if key in saved}
        names = TOKENIZER_FILES if (source.path / "tokenizer.json").is_file() else ()
        for name in (*names, GENERATION):
            if (source.path / name).is_file():
                files[name] = (source.path / name).read_bytes()
    base_model = None if source.about is None else _base_model(source.about["config"])
    own_code = packages is not None
    files[model_folder.CARD] = model_card.card(folder.name, config, own_code, source.about, base_model)
    model_folder.write(folder, content, tensors, files, trial_of)
    return Exported(content["architectures"][0], packages)


def _base_model(config: dict) -> str | None:
    """The hub's OWNER/NAME that a run started from; None for none, and for a local path."""
    name = config["init_from"]
    if name in HUB:
        return None if Path(name).exists() else f"{OWNER}/{name}"
    # the path of an earlier run that is not here looks like OWNER/NAME, but is where runs are kept
    if not name or not on_hub(name) or Path(name).parts[0] in Path(config["out_dir"]).parts:
        return None
    return name


def _run(path: Path) -> Source:
    content = checkpoint.load(path, mmap=True, check=False)
    checkpoint.check_origin(path, content)
    try:
        config = model_config(TrainConfig.of_this_version(content["config"], content["commit"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} has no model configuration that this version knows ({error})"
        ) from None
    if "model" in content:  # of a sharded one, it is in other files
        checkpoint.check_layers(config, content["model"], path)
    dataset = content["config"].get("dataset")

    def read():
        return weights_of_run(path, content)

    keys = ("config", "step", "tokens", "commit", "data", "tokenizer")
    about = {"path": path, **{key: content[key] for key in keys}}
    return Source(path, config, read, content["tokenizer"], content["step"], dataset, about)


def weights_of_run(path: Path, content: dict) -> dict[str, torch.Tensor]:
    """A checkpoint's weights by name. path: of the checkpoint; content: of `checkpoint.load(path)`."""
    if path.is_dir():
        from training import sharded_checkpoint  # brings a part of PyTorch that few need

        return sharded_checkpoint.read_weights(path, content)
    checkpoint.check_tensors(path, content, "model")
    return content["model"]


def _ours(path: Path, content: dict) -> Source:
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path}/config.json: its format is {content['format']!r}, not {FORMAT!r}")
    model = content.get("model")
    try:
        config = model_config(ModelConfig.of_this_version(model))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}/config.json is no model configuration that this version knows ({error.args[0]})"
        ) from None
    try:
        wrong = config.check()
    except TypeError as error:
        wrong = [str(error)]
    if wrong:
        raise CheckpointError(f"{path}/config.json: {'; '.join(wrong)}")
    model_folder.check_weights_exist(path, config)

    def read():
        tensors = model_folder.read_tensors(path)
        # transformers may have saved another dtype
        return {
            name.removeprefix(PREFIX): tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in tensors.items()
        }

    return Source(path, config, read, model_folder.read_tokenizer(path), content.get("step"))


def _foreign_config(content: dict, path: Path) -> ModelConfig:
    try:
        return hugging_face.model_config(content)
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error}") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def _planned(name: str) -> Source:
    """One of HUB with the sizes that are known of it, and no weights."""
    layers, heads, width = HUB[name]
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": width, "n_positions": 1024}
    config = _foreign_config({"model_type": "gpt2", "vocab_size": 50257, **sizes}, Path(OWNER, name))
    return Source(Path(OWNER, name), config, dict, {"kind": "gpt2", "hash": gpt2.HASH})


def _from_hub(name: str) -> Source:
    path = Path(OWNER, name) if name in HUB else Path(name)
    file = download(name, "config.json")
    if file is None:
        raise CheckpointError(f"the Hugging Face hub has no config.json of {path}: give a model's folder")
    content = read_json(file, CheckpointError)
    config = _foreign_config(content, path / "config.json")

    def read():
        tensors = model_folder.read_tensors(path, lambda file: download(name, file))
        return hugging_face.our_weights(tensors, config, path)

    return Source(path, config, read, _tokenizer_on_hub(name))


def _tokenizer_on_hub(name: str) -> dict | None:
    """As Tokenizer.to_json gives it; None where the hub has no tokenizer.json."""
    if name in HUB:
        return {"kind": "gpt2", "hash": gpt2.HASH}
    file = download(name, "tokenizer.json")
    if file is None:
        return None
    download(name, "tokenizer_config.json")  # beside it, and names the end token
    try:
        return build_tokenizer(str(file), list).to_json()
    except DataError as error:
        raise CheckpointError(f"the tokenizer of {name}: {error}") from None


def download(name: str, file: str) -> Path | None:
    """Where a file of one of HUB or of OWNER/NAME lies in the hub's cache; None where the hub has none."""
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if file == model_folder.CHECKSUMS or (name in HUB and file == model_folder.INDEX):
        return None  # none of HUB has shards
    repository = f"{OWNER}/{name}" if name in HUB else name
    reason = None
    try:
        try:
            # one question, because the download itself tries for half a minute before it gives up
            hub.get_hf_file_metadata(hub.hf_hub_url(repository, file), timeout=HUB_SECONDS)
        except EntryNotFoundError:
            return None
        except Exception as error:  # of the network, the hub, an offline mode: the cache may have it
            reason = error
            return Path(hub.hf_hub_download(repository, file, local_files_only=True))
        return Path(hub.hf_hub_download(repository, file))
    except LocalEntryNotFoundError as error:
        reason = reason or error
    except Exception as error:  # of the network, the disk, the hub: whatever it is, there is no file
        reason = error
    if file in OPTIONAL:  # a cache of a model without this file does not say so
        return None
    reason = (str(reason).splitlines() or [type(reason).__name__])[0]
    raise CheckpointError(
        f"{name}: {file} could not be had from the Hugging Face hub, nor from its cache here ({reason}). "
        f"Where there is network, run `hf download {repository} config.json model.safetensors "
        "tokenizer.json tokenizer_config.json --local-dir FOLDER`, and give the path of that folder in the "
        "place of the name"
    )
