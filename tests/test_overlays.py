"""Scripts that take several models refuse an overlay as a model, and print the command that was meant."""

import re
import shlex
from pathlib import Path

import pytest

import ablate
import bench
import count
import overlays
from configurator import ConfigError, assigned, resolve
from models.architecture import ModelConfig

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "config").rglob("*.py"))
A, B, SIZE = "config/gpt2_xl.py", "config/cofrgenet_f.py", "config/size/small.py"
FULL, ROPE = "config/study/full.py", "config/study/rope.py"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([A, SIZE], [f"{A}+{SIZE}"]),
        ([A, B, SIZE], [f"{A}+{SIZE}", f"{B}+{SIZE}"]),
        (["config/size/small.py"], ["config/cofrgenet_f.py+config/size/small.py"]),
        (["config/ablate/saffu_cat.py"], ["config/saffu.py", "config/saffu.py+config/ablate/saffu_cat.py"]),
        ([A, FULL, ROPE], [A, f"{A}+{FULL}", f"{A}+{ROPE}"]),
        ([A, f"{FULL}+{ROPE}", SIZE], [f"{A}+{SIZE}", f"{A}+{FULL}+{ROPE}+{SIZE}"]),
        ([A, "config/ablate/muon.py"], [A, f"{A}+config/ablate/muon.py"]),
    ],
)
def test_the_command_that_was_meant(given, meant):
    with pytest.raises(ConfigError) as caught:
        overlays.check("count.py", [*given, "--block_size=64"])
    command = str(caught.value).splitlines()[-1].strip()
    assert shlex.split(command) == ["python", "count.py", *meant, "--block_size=64"]
    assert overlays.check("count.py", shlex.split(command)[2:]) == []


@pytest.mark.parametrize("script", [count, bench, ablate])
def test_every_script_refuses(script, capsys, tmp_path):
    options = ["--compile=False"] if script is bench else []
    options += [f"--out_dir={tmp_path / 'out'}"] if script is ablate else []
    with pytest.raises(SystemExit) as stop:
        script.main([A, SIZE, *options])
    said = capsys.readouterr()
    assert stop.value.code == 2
    assert said.out == ""
    name = Path(script.__file__).name
    assert f"{name}: 1 mistake in the configuration:\n  {SIZE} is an overlay" in said.err
    assert f"\n    python {shlex.join([name, f'{A}+{SIZE}', *options])}\n" in said.err
    assert not (tmp_path / "out").exists()


def test_a_stack_is_one_model_and_two_arguments_are_two(capsys):
    count.main([f"{A}+{SIZE}", B])
    rows = capsys.readouterr().out.splitlines()[1:3]
    assert [row.split()[0] for row in rows] == [f"{A}+{SIZE}", B]
    stacked, apart = (resolve(ModelConfig, files) for files in ([f"{A}+{SIZE}"], [A, SIZE]))
    assert stacked == apart
    assert (
        f"{sum(count.parameter_counts(resolve(ModelConfig, [A, SIZE, '--vocab_size=50257'])).values()):,}"
        in rows[0]
    )


@pytest.mark.parametrize("file", FILES)
def test_the_commands_of_a_head_have_folders_of_their_own(file):
    """In any order; a dry run has none."""
    head = Path(file).read_text().split("\n\n")[0].replace("\\\n#", " ")
    commands = [line for line in re.findall(r"^#.* train\.py (.+)", head, re.M) if "--dry_run" not in line]
    without = [command for command in commands if "--out_dir=" not in command]
    assert len(without) <= (not overlays.is_overlay(file)), without


@pytest.mark.parametrize("file", FILES)
def test_each_config_file_is_a_model_or_an_overlay(file):
    """Overlays are those without a run folder; all others are accepted."""
    assert overlays.is_overlay(file) == ("out_dir" not in assigned(file))


def test_a_small_model_of_your_own_is_accepted(tmp_path, capsys):
    """Whatever it leaves out; where it has no size at all, a line says which one it gets."""
    for content in ("n_layer = 2\nn_embd = 48\n", "n_layer = 3\n", "out_dir = 'out/mine'\nn_embd = 96\n"):
        (tmp_path / "mine.py").write_text(content)
        assert overlays.check("count.py", [A, str(tmp_path / "mine.py")]) == []
    mine = tmp_path / "mine.py"
    mine.write_text("position = 'rope'\nblock_size = 64\n")
    count.main([A, str(mine)])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"{mine} sets no size")
    assert "n_layer=12, n_head=12, " in line
    assert "block_size" not in line
    assert f"MODEL.py+{mine}" in line
    assert overlays.check("count.py", [A, str(mine), "--n_layer=2"]) == []
    mine.write_text("# Overlay: small\nn_layer = 2\nn_embd = 48\nn_head = 2\nblock_size = 64\n")
    with pytest.raises(ConfigError, match=re.escape(f"{A}+{mine}")):
        overlays.check("count.py", [A, str(mine)])


def test_a_run_that_starts_from_a_model_has_its_size():
    assert overlays.check("ablate.py", ["config/finetune_text.py"]) == []
    assert len(overlays.check("count.py", ["config/finetune_text.py"])) == 1


@pytest.mark.parametrize("finetune", [False, True])
def test_the_hint_comes_with_the_mistakes_that_come_of_it(tmp_path, capsys, finetune):
    """An overlay of one's own in the place of a model: of another length, and without data."""
    mine = str(tmp_path / "mine.py")
    Path(mine).write_text("ffn = 'swiglu'\n")
    given = "config/finetune_text.py" if finetune else mine
    with pytest.raises(SystemExit):
        bench.main(["config/demo_dense.py", given, "--compile=False", "--device=cpu"])
    said = capsys.readouterr()
    assert "models of different block_size" in said.err
    assert f"{given} sets no size" in said.out
    assert f"write MODEL.py+{given})" in said.out
    if not finetune:
        options = ["--dry_run", f"--dataset={tmp_path / 'absent'}", f"--out_dir={tmp_path / 'out'}"]
        with pytest.raises(SystemExit):
            ablate.main([mine, *options])
        said = capsys.readouterr()
        assert "is not a prepared data set" in said.err
        assert f"write MODEL.py+{mine})" in said.out
        with pytest.raises(SystemExit):
            ablate.main([mine, *options, "--n_head=5"])
        assert f"write MODEL.py+{mine})" in capsys.readouterr().err


def test_the_sizes_that_are_named_are_the_defaults():
    assert {key: getattr(ModelConfig(), key) for key in overlays.SIZE} == overlays.SIZE
    assert overlays.check("bench.py", ["gone.py", "a.py+", "config"]) == []  # the script complains itself
