"""What the tests of scaling studies share."""

import pytest

from ablation.plan import Plan
from scaling.command import parsed
from scaling.study import Study

DENSE = "config/gpt2.py+config/size/tiny.py"
LADDERS = "config/cofrgenet_f.py+config/size/tiny.py"


@pytest.fixture
def command(arguments, tmp_path):
    """command(*overrides, models=...) -> a command line of scale.py for tiny runs."""
    leave_out = ("--n_layer=", "--n_head=", "--n_embd=", "--max_iters=", "--learning_rate=", "--min_lr=")
    leave_out += ("--eval_interval=", "--checkpoint_interval=", "--warmup_iters=")
    others = [a for a in arguments if not a.startswith(leave_out)]

    def build(*overrides, models=(DENSE, LADDERS), out_dir=tmp_path / "scaling"):
        return [*models, *others, "--warmup_iters=2", *overrides, f"--out_dir={out_dir}"]

    return build


@pytest.fixture
def study(command, tmp_path):
    """study(*overrides, models=...) -> a Study in a new folder."""

    def build(*overrides, **keys):
        config, families, _ = parsed(command("--tokens_per_parameter=2", *overrides, **keys))
        return Study(config, families, Plan(tmp_path / "scaling"), 256)

    return build
