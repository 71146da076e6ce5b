"""The config files by group, and the model of a stack of them."""

from pathlib import Path

from configurator import resolve
from models.architecture import ModelConfig

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "config").rglob("*.py"))
# of finished models: tests/finetuning
FINE_TUNING = ["config/finetune_text.py", "config/glue.py", "config/report/gpt2_bible.py"]
ON_TOP = ("/recall/", "/size/", "/ablate/", "/study/")
MODELS = [name for name in FILES if name not in FINE_TUNING and not any(part in name for part in ON_TOP)]
STUDY = [name for name in FILES if "/study/" in name]
ABLATIONS = [name for name in FILES if "/ablate/" in name]
SAFFU = [name for name in FILES if "saffu" in name]
EXPE = [name for name in MODELS if "/paper/expe/" in name]
REPORT = [name for name in FILES if "/report/" in name]
PAPER = [name for name in MODELS if "/paper/" in name and name not in [*EXPE, *SAFFU]]
COFRGENETS = [
    f"config/{prefix}cofrgenet{kind}.py" for prefix in ("", "llama_3b_") for kind in ("_f", "_a", "")
]


def model(*files) -> ModelConfig:
    config = resolve(ModelConfig, list(files))
    config.vocab_size = config.vocab_size or 50257
    return config
