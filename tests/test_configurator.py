"""Config files and overrides: what wins, what is refused and in which words."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import pytest

import configurator
import overlays
from configurator import ConfigError, differing, field_comments, help_text, resolve
from sample import SampleConfig
from training.config import TrainConfig


@dataclass
class Config:
    """Words about it."""

    rate: float = 1e-3  # a float # with a sign
    count: int = 3  # an int
    name: str = "a # b"  # a text
    flag: bool = False  # a bool
    perhaps: bool | None = False  # a bool or nothing
    limit: int | None = None  # an int or nothing
    kind: Literal["x", "y"] = "x"  # a choice
    colour: Literal["black", "white"] = "black"  # another one
    runs: list[str] = dataclasses.field(default_factory=list)  # a list
    rates: list[float] | None = None  # a list of numbers or nothing
    seeds: list[int] | None = None  # a list of whole numbers or nothing

    def check(self):
        return ["count must not be 13"] if self.count == 13 else []


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def mistakes(argv, **options):
    with pytest.raises(ConfigError) as caught:
        resolve(Config, argv, **options)
    return caught.value.mistakes


def test_defaults():
    assert resolve(Config, []) == Config()


DERIVED = """
count = 4

def derived(keys):
    return {"limit": 10 * keys["count"], "seeds": [keys["count"]]}
"""


def test_what_a_model_derives_from_its_size(tmp_path):
    """Whatever the order of the files; an override of the size counts, and one of the result wins."""
    model, size = write(tmp_path, "model.py", DERIVED), write(tmp_path, "size.py", "count = 7\n")
    assert resolve(Config, [model]).limit == 40
    assert (resolve(Config, [model, size]).limit, resolve(Config, [model, size]).seeds) == (70, [7])
    assert resolve(Config, [size, model]).limit == 40  # its own count is the last word there
    assert resolve(Config, [model, "--count=9"]).limit == 90
    assert resolve(Config, [model, size, "--limit=5"]).limit == 5


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return {'limit': keys['size']}", "derived() failed: KeyError: 'size'"),
        ("return 3", "TypeError: it must return a dict"),
        ("return {1: 2}", "TypeError: it must return a dict"),
        ("raise SystemExit('no')", "derived() failed: SystemExit: no"),
        ("return {'limt': 3}", "derived: unknown key 'limt'; did you mean limit?"),
        ("return {'limit': 'many'}", "derived: limit must be"),
    ],
)
def test_mistakes_in_what_is_derived(tmp_path, body, message):
    path = write(tmp_path, "model.py", f"def derived(keys):\n    {body}\n")
    (found,) = mistakes([path])
    assert message in found
    assert str(path) in found


def test_later_files_win_and_overrides_win_over_files(tmp_path):
    a = write(tmp_path, "a.py", "count = 1\nrate = 2\nname = 'a'")
    b = write(tmp_path, "b.py", "count = 2\nrate = 3")
    config = resolve(Config, [a, "--rate=4", b])
    assert (config.count, config.rate, config.name) == (2, 4.0, "a")
    assert type(config.rate) is float
    assert resolve(Config, [b, a]).count == 1


def test_a_plus_stacks_files_within_an_argument(tmp_path):
    a = write(tmp_path, "a.py", "count = 1\nname = 'a'")
    b = write(tmp_path, "b.py", "count = 2")
    plus = write(tmp_path, "c+d.py", "count = 3")
    assert resolve(Config, [f"{a}+{b}"]) == resolve(Config, [a, b]) != resolve(Config, [f"{b}+{a}"])
    assert resolve(Config, [plus]).count == 3
    for wrong in (f"{a}+", f"{a}++{b}", f"+{a}", f"{a}+ "):
        (found,) = mistakes([wrong])
        assert "missing beside a +" in found
    assert f"{tmp_path / 'nothing.py'}: no such config file" in mistakes([f"{a}+{tmp_path}/nothing.py"])[0]


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("--rate=5", "rate", 5.0),
        ("--rates=5,1e-3", "rates", [5.0, 1e-3]),
        ("--rates=None", "rates", None),
        ("--seeds=5,1", "seeds", [5, 1]),
        ("--rate=1e-4", "rate", 1e-4),
        ("--count=1_000", "count", 1000),
        ("--count=1.5e3", "count", 1500),
        ("--name=a=b=c", "name", "a=b=c"),
        ("--name=", "name", ""),
        ("--name=3", "name", "3"),
        ("--flag=True", "flag", True),
        ("--flag=true", "flag", True),
        ("--flag=1", "flag", True),
        ("--flag", "flag", True),
        ("--perhaps", "perhaps", True),
        ("--perhaps=None", "perhaps", None),
        ("--flag=False", "flag", False),
        ("--flag=0", "flag", False),
        ("--limit=None", "limit", None),
        ("--limit=7", "limit", 7),
        ("--kind=y", "kind", "y"),
        ("--runs=a,b", "runs", ["a", "b"]),
    ],
)
def test_values_from_the_command_line(argument, key, value):
    found = getattr(resolve(Config, [argument]), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--cuont=1", "unknown key 'cuont'; did you mean count?"),
        ("--zzzzzz=1", "unknown key 'zzzzzz' (see --help)"),
        ("--learning_rte=1", "unknown key 'learning_rte' (see --help)"),
        ("--dry_ru", "unknown key 'dry_ru' (see --help)"),
        ("--count=1.5", "count must be of type int, not '1.5'"),
        ("--count=1.5e0", "count must be of type int, not '1.5e0'"),
        ("--count=abc", "count must be of type int, not 'abc'"),
        ("--rate=fast", "rate must be of type float, not 'fast'"),
        ("--rates=5,x", "rates must be of type list of float"),
        ("--seeds=5,1.0", "seeds must be of type list of int"),
        ("--flag=yes", "flag must be True or False, not 'yes'"),
        ("--kind=z", "kind must be one of 'x', 'y', not 'z'"),
        ("--count=None", "count must be of type int"),
        ("--count", "write it as --count=VALUE"),
        ("--flga", "unknown key 'flga'; did you mean flag?"),
        ("--dry_run", "dry_run is a key of train.py"),
        ("--colour=blak", "not 'blak'; did you mean 'black'"),
        ("--colour=White", "not 'White'; did you mean 'white'?"),
        ("count=3", "neither a config file"),
        ("--max_iters=3", "max_iters is a key of train.py"),
    ],
)
def test_mistakes_on_the_command_line(argument, message):
    (found,) = mistakes([argument])
    assert found.startswith(argument + ": ")
    assert message in found


def test_keys_that_a_script_reads_itself_are_suggested_too():
    """bench.py resolves a model's keys here, and has keys of its own."""
    with pytest.raises(ConfigError) as caught:
        resolve(Config, ["--repetition=3"], known=["repetitions"])
    assert "unknown key 'repetition'; did you mean repetitions?" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count = True", "count must be of type int, not True (bool)"),
        ("count = 1.0", "count must be of type int, not 1.0 (float)"),
        ("flag = 1", "flag must be True or False, not 1 (int)"),
        ("name = None", "name must be of type str, not None (NoneType)"),
        ("learning_rte = 1", "unknown key 'learning_rte'; did you mean learning_rate"),
        ("count = 1\n\ncount = 1 / 0", "line 3: ZeroDivisionError: division by zero"),
        ("count = = 1", "line 1: SyntaxError"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit"),
        ("import no_such_module", "line 1: ModuleNotFoundError"),
    ],
)
def test_mistakes_in_a_file(tmp_path, text, message):
    path = write(tmp_path, "a.py", text)
    (found,) = mistakes([path])
    assert found.startswith(path)
    assert message in found


def test_a_file_in_another_encoding(tmp_path):
    """Python lets such a comment pass."""
    path = tmp_path / "a.py"
    path.write_bytes("# café\ncount = 1".encode("latin-1"))
    (found,) = mistakes([str(path)])
    assert found.startswith(f"{path} is not in UTF-8 (")
    assert not overlays.is_overlay(str(path))


def test_what_is_no_file(tmp_path):
    (tmp_path / "loop.py").symlink_to("loop.py")
    os.mkfifo(tmp_path / "pipe.py")
    for name in ("loop.py", "pipe.py"):
        (found,) = mistakes([str(tmp_path / name)])
        assert f"{name} is no config file" in found


def test_a_missing_file_names_its_neighbours(tmp_path):
    neighbour = write(tmp_path, "gpt2.py", "")
    (found,) = mistakes([str(tmp_path / "gtp2.py")])
    assert "no such config file" in found
    assert neighbour in found


def test_a_file_that_is_not_read_hides_what_would_come_of_defaults(tmp_path):
    """Its keys might be the ones that are missing, or wrong together."""
    other = write(tmp_path, "a.py", "def derived(keys):\n    return {'limit': keys['count']}")
    broken = write(tmp_path, "b.py", "count = 1 / 0")
    for unread in (str(tmp_path / "nothing.py"), broken):
        (found,) = mistakes([unread, other, "--limit=13"], saved=lambda values: tmp_path / "no.json")
        assert found.startswith(unread)
        with pytest.raises(ConfigError) as caught:
            resolve(SampleConfig, [unread], positional="out_dir")
        assert len(caught.value.mistakes) == 1
    found = mistakes([broken, "--count=13", "--kind=z"])
    assert [line.split(":")[0] for line in found] == [f"{broken}, line 1", "--kind=z"]


def test_all_mistakes_are_told_at_once(tmp_path):
    path = write(tmp_path, "a.py", "count = 'x'\nunknown = 1")
    found = mistakes([path, "--flag=7", "--nonsense=1", str(tmp_path / "b.py")])
    assert len(found) == 5


def test_a_config_checks_itself():
    assert mistakes(["--count=13"]) == ["count must not be 13"]
    assert len(mistakes(["--count=13", "--kind=z", "--nonsense=1"])) == 3
    assert len(mistakes(["--count=13", "--count=x"])) == 1


def test_a_file_serves_all_scripts(tmp_path):
    """Keys of other scripts are left to them; a private name or a module is no key."""
    path = write(tmp_path, "a.py", "import math\n_half = 0.5\nrate = _half\nmax_iters = 7\nmath.pi")
    assert resolve(Config, [path]).rate == 0.5


def test_saved_values_lie_below_files(tmp_path):
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps({"count": 5, "rate": 2, "limit": None}))
    path = write(tmp_path, "a.py", "rate = 3.0")
    config = resolve(Config, [path], saved=lambda values: saved)
    assert (config.count, config.rate) == (5, 3.0)
    assert resolve(Config, [path, "--count=6"], saved=lambda values: saved).count == 6
    assert (
        resolve(Config, [path], saved=lambda values: saved if values.get("rate") == 1 else None).count == 3
    )
    saved.write_text("{")
    assert "cannot be read as JSON" in mistakes([], saved=lambda values: saved)[0]


def test_a_bool_without_a_value():
    """The last word wins, and a value that stands apart is a mistake."""
    assert resolve(Config, ["--flag=False", "--flag"]).flag
    assert not resolve(Config, ["--flag", "--flag=False"]).flag
    assert mistakes(["--flag", "False"]) == ["--flag False: write it as --flag=False"]
    assert "--key means --key=True" in help_text(Config)


def test_a_value_that_stands_apart():
    """It belongs to the key before it, known or not, unless it is a file or another key."""
    assert mistakes(["--count", "3"]) == ["--count 3: write it as --count=3"]
    assert mistakes(["--epochs", "3", "--rate=1"]) == ["--epochs 3: unknown key 'epochs' (see --help)"]
    assert mistakes(["--count", "--flag"]) == ["--count: write it as --count=VALUE"]
    assert mistakes(["--count", __file__])[0] == "--count: write it as --count=VALUE"
    folder = str(configurator.ROOT)
    assert mistakes(["--name", folder]) == [f"--name {folder}: write it as --name={folder}"]
    assert mistakes(["--rate", folder], positional="name") == ["--rate: write it as --rate=VALUE"]
    assert resolve(Config, ["--flag", "out/a"], positional="name").name == "out/a"


def test_positional_arguments():
    assert resolve(Config, ["out/a"], positional="name").name == "out/a"
    assert resolve(Config, ["a", "b"], positional="runs").runs == ["a", "b"]
    assert mistakes(["a", "b"], positional="name") == ["b: one model only, name is a already"]
    assert "neither" in mistakes(["a", "b=1"], positional="name")[0]


def test_a_required_key():
    with pytest.raises(ConfigError, match=r"--out_dir=\.\.\. is required"):
        resolve(SampleConfig, [])


def test_help_and_printout_name_every_key(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    assert field_comments(Config)["name"] == "a text"
    assert field_comments(Config)["rate"] == "a float # with a sign"
    for cls in (Config, TrainConfig, SampleConfig):
        text = help_text(cls)
        for field in dataclasses.fields(cls):
            assert f"--{field.name}=" in text
            assert field_comments(cls).get(field.name), f"{cls.__name__}.{field.name} has no comment"
    assert "--runs=[]  (" in help_text(Config)
    assert "\nrun:\n  --out_dir=" in help_text(TrainConfig)
    assert "\ncontinued fractions:\n  --cf_ladders=" in help_text(TrainConfig)
    assert "--out_dir=required  (" in help_text(SampleConfig)
    assert list(differing(TrainConfig(seed=4, dataset="b")).items()) == [("seed", 4), ("dataset", "b")]
    with pytest.raises(SystemExit) as stop:
        configurator.parse(TrainConfig, ["--help"])
    assert stop.value.code == 0
    assert "--learning_rate=0.0006  (float)" in capsys.readouterr().out


HELP = """
import sys
from configurator import parse
from training.config import TrainConfig
sys.stdin.read()
parse(TrainConfig, ["--help"])
"""


def test_help_for_a_reader_who_has_gone():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", HELP]
    with subprocess.Popen(command, cwd=configurator.ROOT, text=True, **pipes) as script:
        script.stdout.close()
        script.stdin.close()
        assert script.stderr.read() == ""


def test_every_key_of_every_script_has_its_comment():
    """On the line where the key stands, or above it after `#:`; the formatter moves one away from a line
    that is too long.
    """
    silent, seen = [], 0
    for path in (*configurator.ROOT.glob("*.py"), *configurator.ROOT.glob("[!.]*/**/*.py")):
        if configurator.ROOT / "tests" in path.parents:
            continue
        text = path.read_text()
        lines, classes = text.splitlines(), ast.walk(ast.parse(text))
        for cls in (
            c for c in classes if isinstance(c, ast.ClassDef) and c.name.endswith(("Config", "Keys"))
        ):
            for key in (item for item in cls.body if isinstance(item, ast.AnnAssign)):
                seen += 1
                told = "  # " in lines[key.lineno - 1] or lines[key.lineno - 2].startswith("    #: ")
                silent += [] if told else [f"{path}: {key.target.id}"]
    assert seen > 300
    assert not silent


def test_parse_prints_mistakes_and_exits_with_2(capsys):
    with pytest.raises(SystemExit) as stop:
        configurator.parse(TrainConfig, ["--n_layers=3", "--batch_size=-1"])
    assert stop.value.code == 2
    assert "unknown key 'n_layers'; did you mean n_layer" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("key", ["rate", "rates"])
def test_no_float_key_takes_what_is_not_finite(tmp_path, key, value):
    found = "-inf" if value == "-inf" else "nan" if value == "nan" else "inf"
    assert mistakes([f"--{key}={value}"]) == [f"--{key}={value}: {key} must be finite, not {found}"]
    written = f"[1.0, float('{value}')]" if key == "rates" else f"float('{value}')"
    path = write(tmp_path, "a.py", f"{key} = {written}\n")
    assert mistakes([path]) == [f"{path}: {key} must be finite, not {found}"]


@pytest.mark.parametrize("key", ["expe_start", "norm_eps", "learning_rate"])
def test_the_float_keys_of_a_model_are_held_to_that(key):
    with pytest.raises(ConfigError, match=f"{key} must be finite, not nan"):
        resolve(TrainConfig, [f"--{key}=nan"])


def test_an_integer_beyond_every_float(tmp_path):
    path = write(tmp_path, "a.py", "rate = 10**400\nrates = [10**400]\n")
    assert mistakes([path]) == [f"{path}: {key} is too large for a float" for key in ("rate", "rates")]


def test_ctrl_c_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "argv", ["folder/sample.py"])
    configurator.parse(Config, [])
    for error in (KeyboardInterrupt(), ValueError("a mistake")):
        sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == "\nsample.py: interrupted\nValueError: a mistake\n"
