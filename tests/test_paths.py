"""Names that no file system takes, and arguments that look like files and are none."""

import re

import pytest

import ablate
import configurator
import finetune
from configurator import ConfigError
from corpus import DataError, files
from corpus.binary import prepare
from corpus.tokenizer_registry import parse_tokenizer_name
from training import pretrained
from training.checkpoint import CheckpointError
from training.config import TrainConfig
from training.inputs import saved_config
from training.log import RunFolderError, open_run

LONG = "a" * 300


@pytest.mark.parametrize(
    "argv",
    [[f"{LONG}.py"], ["--resume=True", f"--out_dir={LONG}"], [f"--init_from={LONG}"]],
)
def test_train_refuses_a_name_that_is_too_long(argv):
    with pytest.raises(ConfigError, match="File name too long"):
        configurator.resolve(TrainConfig, argv, saved=saved_config)


def test_a_check_that_meets_such_a_name():
    with pytest.raises(ConfigError, match=f"{LONG}: File name too long"):
        configurator.resolve(finetune.FinetuneConfig, ["a", f"--data_dir={LONG}"], positional="models")


def test_others_refuse_it_in_their_own_words(tmp_path):
    with pytest.raises(CheckpointError, match=r"opened .*File name too long"):
        pretrained.open_source(LONG)
    with (
        pytest.raises(RunFolderError, match=r"(read|written) \(File name too long\)"),
        open_run(str(tmp_path / LONG), resume=False),
    ):
        pass
    with pytest.raises(DataError, match=r"\.txt: File name too long"):
        files.find([f"{LONG}.txt"])
    assert not files.looks_local(LONG)
    with pytest.raises(DataError, match="no such file"):
        parse_tokenizer_name(f"{LONG}.json")
    with pytest.raises(DataError, match=r"write .*File name too long"):
        prepare(lambda: iter(["text"]), {}, "bytes", tmp_path / LONG, 0.5, workers=1)


@pytest.mark.parametrize(
    "model", [".", "config/gpt2.py+", "config/gpt2.py +", "+", "config/gpt2", "config/gpt2.py+."]
)
def test_ablate_takes_config_files_only(model, capsys):
    with pytest.raises(SystemExit) as stop:
        ablate.main([model, "--dry_run=True"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert model in said
    assert re.search(r"is no config file|missing beside", said)


def test_ablate_refuses_a_folder_of_a_name_that_is_too_long(tmp_path, capsys):
    keys = [f"learning_rate=1e-3,2e-3 track_project={'x' * 250},y"]
    with pytest.raises(SystemExit) as stop:
        ablate.main(
            ["config/demo_dense.py", f"--out_dir={tmp_path / 'a'}", "--dry_run=True", f"--vary={keys[0]}"]
        )
    assert stop.value.code == 2
    assert "its folder's name would have 3" in capsys.readouterr().err
