"""Peak memory with all logits at once and with the chunked loss, everything else equal.

    python results/loss_memory/run.py head      # the head and the loss alone
    python results/loss_memory/run.py step      # a whole training step of GPT-2 small

8 x 1,024 tokens, 50,304 columns of logits, bfloat16, compiled; each form runs in a process of its own.
Needs about 8 GB.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import configurator
from benchmarks import training_step
from benchmarks.worker import Worker
from kernels.linear_cross_entropy import linear_cross_entropy, linear_cross_entropy_naive
from models import architecture, language_model
from reports.markdown_table import table
from training.environment import environment
from training.hardware import autocast

FORMS = {"all logits": linear_cross_entropy_naive, "chunked": linear_cross_entropy}
BATCH_SIZE = 8


def step(form: str, device: torch.device):
    language_model.linear_cross_entropy = FORMS[form]
    config = configurator.parse(architecture.ModelConfig, ["config/gpt2.py"])
    config.vocab_size = 50257
    options = training_step.StepOptions(
        BATCH_SIZE, "bfloat16", compile=True, activation_checkpointing=False
    )
    return {"whole": training_step.sections(config, options, device)["whole"]}


def head(form: str, device: torch.device):
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH_SIZE, 1024, 768, generator=drawn).to(device).requires_grad_()
    weight = (0.02 * torch.randn(50304, 768, generator=drawn)).to(device).requires_grad_()
    targets = torch.randint(50257, (BATCH_SIZE, 1024), generator=drawn).to(device)
    function = torch.compile(FORMS[form], fullgraph=True, dynamic=False)

    def iteration():
        x.grad = weight.grad = None
        with autocast(device, "bfloat16"):
            loss = function(x, weight, targets, 50257)
        loss.backward()

    return {"whole": iteration}


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        return print(__doc__.strip())
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        print(
            f"{Path(__file__).name}: type {' or '.join(PARTS)} after it, and nothing else", file=sys.stderr
        )
        sys.exit(2)
    part = PARTS[sys.argv[1]]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(", ".join(f"{key} {value}" for key, value in environment(device).items()))
    rows = []
    for form in FORMS:
        with Worker(form, device, None, part, form, device) as worker:
            worker.ask("sections")
            worker.ask("memory", "whole")  # compiles
            peak = worker.ask("memory", "whole")
        rows.append({sys.argv[1]: form, "peak MB": f"{peak / 1e6:,.0f}"})
    print(table(rows))


PARTS = {"head": head, "step": step}

if __name__ == "__main__":
    main()
