"""What a name of another codebase is called here: the tables name keys that exist."""

import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import configurator
import foreign_keys
from configurator import ConfigError
from data.text.prepare import PrepareConfig
from evaluate import EvaluateConfig
from export import ExportConfig
from finetune import FinetuneConfig
from sample import SampleConfig
from training.config import TrainConfig

SCRIPTS = {
    "TRAINING": TrainConfig,
    "FINETUNING": FinetuneConfig,
    "SAMPLING": SampleConfig,
    "EVALUATING": EvaluateConfig,
    "EXPORTING": ExportConfig,
    "PREPARING": PrepareConfig,
}


def names(config_class) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}


def said(config_class, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        configurator.resolve(config_class, list(arguments))
    return str(caught.value)


@pytest.mark.parametrize("table", SCRIPTS)
def test_every_target_is_a_key_and_no_name_is(table):
    own = names(SCRIPTS[table])
    for name, (keys, differs) in getattr(foreign_keys, table).items():
        assert own.issuperset(keys.split()), name
        assert name not in own, f"{name} has a meaning here, so that nobody sees the hint"
        assert keys or differs, name
        assert not differs.endswith("."), name


def test_tables_of_training_do_not_contradict_one_another():
    """A name of two codebases is in one table only: the union would hide one of its meanings."""
    tables = [
        table
        for name, table in vars(foreign_keys).items()
        if name.startswith("OF_") and type(table) is dict
    ]
    assert len(tables) == 5
    assert sum(map(len, tables)) == len(foreign_keys.TRAINING)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--lr=3e-4", "--lr=3e-4: unknown key 'lr': here learning_rate\n"),
        (
            "--num_train_epochs=3",
            "'num_train_epochs': here max_iters (the number of steps, as max_iters = ep",
        ),
        ("--per-device-train-batch-size=8", ": here batch_size (of one rank too, but gradient_accum"),
        ("--report_to=wandb", "'report_to': here track (none, wandb or trackio)"),
        ("--model_name_or_path=gpt2", "'model_name_or_path': here init_from\n"),
        ("--resume_from_checkpoint=x", ": here resume and out_dir (--resume=True goes on"),
        ("--bf16", "--bf16: unknown key 'bf16': here dtype (--dtype=bfloat16)"),
        ("--wandb_log=True", "'wandb_log': here track (--track=wandb)"),
        ("--eval_only=True", "'eval_only': no key here (python evaluate.py RUN)"),
        ("--train.micro_batch_size=4", "'train.micro_batch_size': here batch_size\n"),
        ("--train.weight_decay=0.1", "'train.weight_decay': here weight_decay\n"),
        ("--eval.max_iters=4", "'eval.max_iters': here eval_tokens (in tokens, not in batches)"),
        ("--eval.interval=4", "'eval.interval': here eval_interval\n"),
        ("--lr_scheduler.decay_ratio=0.1", "here wsd_decay_iters (in steps, with"),
        ("--mine.nonsense=1", "unknown key 'mine.nonsense' (see --help)"),
        ("--n_embed=3", "'n_embed'; did you mean n_embd"),
    ],
)
def test_train_py_says_what_a_key_is_called_here(argument, words):
    assert words in said(TrainConfig, argument) + "\n"


def test_a_config_file_gets_the_same_hint(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text("lr = 3e-4\n")
    assert f"{file}: unknown key 'lr': here learning_rate" in said(TrainConfig, str(file))
    assert f"{file}: unknown key 'lr': here learning_rate" in said(SampleConfig, "out/x", str(file))


def test_the_script_at_hand_comes_first():
    assert "'num_train_epochs': here epochs" in said(FinetuneConfig, "out/x", "--num_train_epochs=3")
    assert "'output_dir': here out\n" in said(PrepareConfig, "--output_dir=x") + "\n"
    assert "'num_beams': here beams" in said(SampleConfig, "out/x", "--num_beams=3")
    # nothing that trains is named to who samples
    assert "'eval_only' (see --help)" in said(SampleConfig, "out/x", "--eval_only=True")


def test_init_from_with_nanogpts_values():
    from training.inputs import saved_config

    with pytest.raises(ConfigError, match="To go on with a run, give --resume=True and its --out_dir"):
        saved_config({"init_from": "resume"})
    with pytest.raises(ConfigError, match="To start with random weights, leave it out"):
        saved_config({"init_from": "scratch"})


def test_the_trainers_names_are_transformers_own():
    """Of the arguments of the installed version, so that the table follows it."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    from transformers import TrainingArguments

    theirs = set(inspect.signature(TrainingArguments).parameters)
    older = {"logging_dir", "overwrite_output_dir", "evaluation_strategy", "warmup_ratio", "no_cuda"}
    lines = inspect.getsource(foreign_keys).split("# TrainingArguments\n")[1].split("# its scripts")[0]
    ours = {line.split('"')[1] for line in lines.splitlines() if line.startswith('    "')}
    assert "per_device_train_batch_size" in ours
    assert ours - theirs == older


def test_the_page_says_what_the_hint_says():
    """Each name of its tables that has a hint stands beside the keys of that hint; most names have one."""
    page = (Path(__file__).resolve().parents[1] / "docs/from_transformers.md").read_text()
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page.split("## Classes")[0], re.M)
    seen = 0
    for left, right in rows:
        for name in re.findall(r"`(\w+)`", left):
            keys = foreign_keys.TRAINING.get(name, ("", ""))[0].split()
            assert all(re.search(rf"`{key}\b", right) for key in keys), name
            seen += bool(keys)
    assert seen > 40
