"""Peak memory of a training step with all logits at once and with the chunked loss, everything else equal.

    python results/loss_memory.py

GPT-2 small, 8 x 1,024 tokens, bfloat16, compiled; each form in a process of its own. Needs about 20 GB.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import configurator
import model
from benchmarks import report, training_step
from benchmarks.worker import Worker
from kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_naive

FORMS = {"all logits": linear_cross_entropy_naive, "chunked": linear_cross_entropy}
BATCH_SIZE = 8


def step(form: str, device: torch.device):
    model.linear_cross_entropy = FORMS[form]
    config = configurator.parse(model.ModelConfig, ["config/gpt2.py"])
    config.vocab_size = 50257
    options = training_step.StepOptions(
        BATCH_SIZE, "bfloat16", compile=True, activation_checkpointing=False
    )
    return {"whole": training_step.sections(config, options, device)["whole"]}


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(", ".join(f"{key} {value}" for key, value in report.circumstances(device).items()))
    rows = []
    for form in FORMS:
        with Worker(form, device, None, step, form, device) as worker:
            worker.ask("sections")
            worker.ask("time", "whole", 0.0)  # compiles
            peak = worker.ask("memory", "whole")
        rows.append({"loss": form, "peak MB": f"{peak / 1e6:,.0f}"})
    print(report.table(rows))


if __name__ == "__main__":
    main()
