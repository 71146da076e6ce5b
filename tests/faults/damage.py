"""Damage files that a run reads, one at a time, and see what our scripts make of them.

    python tests/faults/damage.py --count=1000 --seed=1 --csv=damaged_files.csv
    python tests/faults/damage.py --table --csv=damaged_files.csv

A row of the CSV is one file, damaged in a copy of a run, a data set or an exported model, and one reader of
it. damages:

    cut      truncated at a random byte
    flip     a random bit is another one
    zeros    64 bytes are zeros
    swapped  the file of the same name of another run, data set or model
    foreign  something else lies there: text, noise, JSON, a picture, an archive, an array, a folder
    gone     it is not there

outcomes:

    same     the reader ends, with what it makes of the sound file, to the bit
    told     something else, and the reader says what
    log      a resumed run ends with the same weights; one or more old records of its log differ
    refused  the reader ends with an error message
    silent   something else without a word
    trace    a Python traceback; mute: an error without a message; hung
"""

import argparse
import collections
import contextlib
import csv
import io
import random
import re
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch

from reports.markdown_table import table
from tests.faults import kept, runs
from training import checkpoint
from training.log import read_log

DAMAGES = ("cut", "flip", "zeros", "swapped", "foreign", "gone")
OUTCOMES = ("same", "told", "log", "refused", "silent", "trace", "mute", "hung")
COLUMNS = ("number", "of", "file", "reader", "damage", "detail", "outcome", "lines", "message")
LAST, SHARDED = "ckpt/step_00000012.pt", "ckpt/step_00000012"
LAST_NAME = re.compile(r"step_0*12(\.pt)?, step")
# what is damaged, and who reads it
READERS = {
    ("run", LAST): ("resume", "sample_last"),
    ("run", "ckpt/best.pt"): ("resume", "resume_best", "sample", "export"),
    ("sharded", f"{SHARDED}/run.pt"): ("resume", "sample_last"),
    ("sharded", f"{SHARDED}/.metadata"): ("resume", "sample_last"),
    ("sharded", f"{SHARDED}/__0_0.distcp"): ("resume", "sample_last"),
    ("run", "config.json"): ("resume",),
    ("run", "log.jsonl"): ("resume", "sample"),
    ("data", "meta.json"): ("resume_data", "train"),
    ("data", "train.bin"): ("resume_data", "train_verified"),
    ("data", "val.bin"): ("resume_data", "train"),
    ("data", "token_bytes.npy"): ("resume_data", "train"),
    ("data", "tokenizer.json"): ("resume_data", "train"),
    ("export", "config.json"): ("sample", "init_from"),
    ("export", "model.safetensors"): ("sample", "init_from"),
    ("export", "data_tokenizer.json"): ("sample", "init_from"),
    ("export", "SHA256SUMS"): ("sample",),
    ("gpt2", "config.json"): ("sample", "init_from"),
    ("gpt2", "model.safetensors"): ("sample", "init_from"),
}
FOREIGN = ("text", "noise", "list", "object", "deep", "picture", "archive", "tensors", "array", "folder")


@dataclass
class World:
    """Sound folders by name, each with one to swap with; the uninterrupted run; what is made of them."""

    base: Path
    folders: dict[str, tuple[Path, Path]]
    reference: kept.Reference
    dataset: Path
    keys: list[str]
    sound: dict

    def short(self, out: Path, *more: str) -> list[str]:
        """Command line of a run of six steps."""
        return [*runs.command_line(self.dataset, "ladders", out, *self.keys), "--max_iters=6", *more]

    def short_from(self, source: Path, out: Path) -> list[str]:
        """The same from the weights of another model, whose architecture it has."""
        of_model = ("--n_", "--block_size", "--cf_", *runs.MODELS["ladders"])
        keys = [key for key in self.short(out) if not key.startswith(of_model)]
        return [*keys, f"--init_from={source}"]


def build(base: Path, keys: list[str]) -> World:
    import export

    runs.warm_up(base)
    sets = [runs.make_dataset(base / f"data{seed}", "bpe:265", seed) for seed in (7, 8)]
    scratch = base / "scratch"
    whole, half, twin = (base / name for name in ("whole", "half", "twin"))
    reference = kept.Reference.of(
        "warm", 1, runs.command_line(sets[0], "ladders", whole, *keys), whole, scratch
    )
    runs.killed_half_way(runs.command_line(sets[0], "ladders", half, *keys), scratch)
    # as of a sweep of learning rates
    runs.killed_half_way(
        runs.command_line(sets[0], "ladders", twin, *keys, "--learning_rate=2e-3"), scratch
    )
    sharded = [base / "sharded", base / "sharded_twin"]
    for number, folder in enumerate(sharded):
        more = ["--checkpoint_format=sharded", f"--learning_rate={3e-3 - 1e-3 * number}"]
        runs.killed_half_way(runs.command_line(sets[0], "ladders", folder, *keys, *more), scratch)
    dense = [base / name for name in ("dense", "dense_twin")]
    for number, folder in enumerate(dense):
        more = ["--norm=layernorm", "--position=learned", f"--seed={number}"]
        runs.killed_half_way(runs.command_line(sets[0], "dense", folder, *keys, *more), scratch)
    exported = {}
    for run in (half, twin, *dense):
        exported[run] = base / f"exported_{run.name}"
        with runs.quiet():
            export.main([str(run), str(exported[run]), "--load=False"])
    folders = {
        "run": (half, twin),
        "sharded": tuple(sharded),
        "data": (sets[0], sets[1]),
        "export": (exported[half], exported[twin]),
        "gpt2": (exported[dense[0]], exported[dense[1]]),
    }
    return World(base, folders, reference, sets[0], keys, {})


def foreign(dice: random.Random, path: Path) -> str:
    """Put something else in the place of a file -> what."""
    kind, size = dice.choice(FOREIGN), path.stat().st_size
    path.unlink()
    if kind == "folder":
        path.mkdir()
        return kind
    buffer = io.BytesIO()
    if kind == "tensors":
        torch.save({"model": {"w": torch.ones(3)}}, buffer)
    elif kind == "array":
        np.save(buffer, np.arange(6.0).reshape(2, 3))
    elif kind == "archive":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("readme.txt", "nothing of use")
    texts = {
        "text": b"We the People of the United States\n" * 9, "list": b"[1, 2]",
        "object": b'{"a": {"b": 1}}',
        "deep": b"[" * 100_000, "picture": b"\x89PNG\r\n\x1a\n" + bytes(99), "noise": dice.randbytes(size),
    }  # fmt: skip
    path.write_bytes(texts.get(kind) or buffer.getvalue())
    return kind


def damage(dice: random.Random, how: str, path: Path, other: Path) -> str:
    """Damage a file in place -> what was done, for the CSV."""
    if how == "gone":
        path.unlink()
        return ""
    if how == "swapped":
        path.unlink()
        shutil.copyfile(other, path)
        return ""
    if how == "foreign":
        return foreign(dice, path)
    content = bytearray(path.read_bytes())
    place = dice.randrange(len(content))
    path.unlink()  # best.pt and the newest checkpoint may be one file
    if how == "cut":
        path.write_bytes(content[:place])
        return f"{place} of {len(content)} bytes"
    if how == "zeros":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
        path.write_bytes(content)
        return f"from byte {place} of {len(content)}"
    bit = dice.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {place} of {len(content)}"


def told_of(folder: Path) -> tuple:
    """What a training run leaves: its numbers, and the state of its last and best checkpoint."""
    try:
        states = tuple(kept.state_of(checkpoint.find(folder, which)) for which in ("last", "best"))
        return kept.without_times(read_log(folder)), states
    except ValueError as error:
        return [], (str(error), "")


def read(reader: str, folder: Path, world: World, scratch: Path) -> tuple[int | None, str, object]:
    """Let a reader read a folder -> (status, what it printed, what it made of it)."""
    import export
    import sample
    import train
    from training import pretrained

    out, output, evidence = scratch / "out", scratch / "output", scratch / "evidence"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    which = ["--which=last"] if reader == "sample_last" else []

    def sampled():
        sys.argv[0] = "sample.py"
        sample.main([str(folder), "--max_new_tokens=4", "--temperature=0", *which])
        model, tokenizer = pretrained.load(folder, "last" if which else "best")
        evidence.write_text(f"{kept.digest(model.state_dict())} {model.config} {tokenizer.hash}")

    def exported():
        sys.argv[0] = "export.py"
        export.main([str(folder), str(out), "--load=False"])
        evidence.write_text((out / "SHA256SUMS").read_text())

    def trained(arguments):
        sys.argv[0] = "train.py"
        train.main(arguments)

    go_on = ["--resume=True", f"--out_dir={folder}"]
    if reader in ("resume_data", "train", "train_verified"):
        more = [f"--dataset={folder}", *(["--verify_data=True"] if reader == "train_verified" else [])]
    if reader == "resume_data":
        shutil.copytree(world.folders["run"][0], out)
        go_on = ["--resume=True", f"--out_dir={out}", *more]
    actions = {
        "sample": sampled, "sample_last": sampled, "export": exported,
        "init_from": lambda: trained(world.short_from(folder, out)),
        "train": lambda: trained(world.short(out, *more)),
    }  # fmt: skip
    actions["train_verified"] = actions["train"]
    if reader == "resume_best":  # as after a first checkpoint that was cut off between its two names
        for path in checkpoint.numbered(folder / "ckpt"):
            path.unlink()
    pid = runs.fork(actions.get(reader, lambda: trained(go_on)), output)
    status, text = runs.wait(pid, 60), output.read_text(errors="replace")
    if reader in ("sample", "sample_last", "export"):
        return status, text, evidence.read_text() if evidence.exists() else ""
    made = folder if reader in ("resume", "resume_best") else out
    return status, text, told_of(made) if status == 0 else None


def judge(status: int | None, text: str, made: object, sound: object) -> tuple[str, int, str]:
    """(outcome, lines of the message, its first line)"""
    said, tracebacks = runs.messages(text)
    # a mistake of a configuration has a line for each
    first = max((m.start() for m in re.finditer(r"^\w+\.py: ", text, re.M)), default=len(text))
    lines = len(text[first:].strip().splitlines())
    message = " / ".join(text[first:].strip().splitlines()[:3])
    if status is None:
        return "hung", 0, ""
    if tracebacks:
        return "trace", 0, text.strip().splitlines()[-1]
    if status:
        return ("refused" if said else "mute"), lines, message
    if made == sound:
        return "same", 0, ""
    changes = re.findall(r"^  \S+ was .*, now .*$|^  log\.jsonl .*$", text, re.M)
    if not LAST_NAME.search(text):  # sample.py says which checkpoint it takes
        changes += re.findall(r"^.*step_\d+(?:\.pt)?, step \d+$", text, re.M)
    if changes:
        return "told", 0, " / ".join(line.strip() for line in changes)
    if isinstance(made, tuple) and made[1] == sound[1]:
        return "log", 0, kept.first_difference(made[0], sound[0])
    return "silent", 0, ""


def damage_one(number: int, seed: int, world: World, cases: list) -> dict:
    dice = random.Random(f"{seed} {number}")
    of, file, reader, how = cases[number % len(cases)]
    sound, other = world.folders[of]
    if (of, reader) not in world.sound:
        copy = Path(shutil.copytree(sound, world.base / "sound"))
        status, text, made = read(reader, copy, world, world.base / "reading")
        if status or not made:
            raise RuntimeError(f"{reader} of a sound {of} failed:\n{text}")
        world.sound[of, reader] = made
        shutil.rmtree(copy)
    copy = world.base / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound, copy)
    detail = damage(dice, how, copy / file, other / file)
    status, text, made = read(reader, copy, world, world.base / "reading")
    outcome, lines, message = judge(status, text, made, world.sound[of, reader])
    if outcome in ("trace", "mute", "hung", "silent"):
        print(f"{number}: {of} {file} {reader} {how} {detail}: {outcome} {message}", file=sys.stderr)
    shutil.rmtree(copy)
    return {
        "number": number, "of": of, "file": file.replace("00000012", "*"), "reader": reader,
        "damage": how, "detail": detail, "outcome": outcome, "lines": lines,
        "message": message.replace(str(copy), "FOLDER").replace(str(world.base), "BASE")[:400],
    }  # fmt: skip


def main(given: list[str]) -> int:
    """-> 0 if no damage led to a traceback or to something wrong without a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", default="", help="only these, such as run:log.jsonl,data:meta.json")
    parser.add_argument("--damages", default=",".join(DAMAGES))
    parser.add_argument("--keys", default="", help="more keys for train.py, separated by blanks")
    parser.add_argument("--csv", type=Path, required=True, help="rows are appended")
    parser.add_argument("--table", action="store_true", help="print a summary of the CSV, damage nothing")
    options = parser.parse_args(given)
    rows = list(csv.DictReader(options.csv.open())) if options.csv.exists() else []
    if options.table:
        print(summary(rows))
        return 0
    files, damages = options.files.split(",") if options.files else None, options.damages.split(",")
    cases = [
        (of, file, reader, how)
        for (of, file), readers in READERS.items()
        if files is None or f"{of}:{file}" in files
        for reader in readers
        for how in damages
    ]
    random.Random(options.seed).shuffle(cases)
    with contextlib.ExitStack() as stack:
        world = build(Path(stack.enter_context(tempfile.TemporaryDirectory())), options.keys.split())
        file = stack.enter_context(options.csv.open("a"))
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for number in range(len(rows), options.count):
            row = damage_one(number, options.seed, world, cases)
            writer.writerow(row)
            file.flush()
            rows.append(row)
    bad = [row for row in rows if row["outcome"] in ("silent", "trace", "mute", "hung")]
    print(f"{len(rows)} damaged files; {len(bad)} with a traceback or something wrong without a word")
    return bool(bad)


def summary(rows: list[dict]) -> str:
    """Outcomes by file and damage, as Markdown."""
    groups = collections.defaultdict(collections.Counter)
    for row in rows:
        groups[f"{row['of']}: {row['file']}, {row['damage']}"][row["outcome"]] += 1
        groups["all"][row["outcome"]] += 1
    seen = [outcome for outcome in OUTCOMES if groups["all"][outcome]]
    order = sorted(groups, key=lambda name: (name == "all", name))
    return table([{"damaged": name} | {one: f"{groups[name][one]:,}" for one in seen} for name in order])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
