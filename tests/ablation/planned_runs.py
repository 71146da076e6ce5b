from ablation.product import Planned
from training.config import DEFAULTS


def planned(count):
    keys = {"max_iters": 1, "batch_size": 1, "gradient_accumulation_steps": 1, "block_size": 8, "seed": 1}
    return [Planned(f"run{n}", f"run{n}", {**DEFAULTS, **keys}) for n in range(count)]
