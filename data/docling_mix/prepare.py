"""Prepares the docling data mix: the nine sources that the CoFrGeNet paper names, as far as public.

    python data/docling_mix/prepare.py --stack_edu_files=PATH
    python data/docling_mix/prepare.py --sources=dclm2,dclm3plus,fineweb2,finemath,cosmopedia

Each source becomes a data set of its own. The --dataset=... that mixes them is printed at the end. After a
stop or a kill, the same command continues. The paper gives names only. We read:

    dclm2, dclm3plus    not published under these names. HuggingFaceTB/dclm-edu, which is DCLM with the
                        scores of FineWeb-Edu's classifier: documents with score 2, and with 3 or more
    fineweb2            "FineWeb-2-edu" is not published: HuggingFaceFW/fineweb-2, --languages in turn
    starcoder           bigcode/starcoderdata, --programming in turn; gated: accept its terms and log in
    stack_edu           HuggingFaceTB/stack-edu has ids only. The script on its page downloads the contents
                        from Software Heritage: give them as files with a column `text`
    finemath            HuggingFaceTB/finemath, the better of its two qualities: finemath-4plus
    infiwebmath         HuggingFaceTB/finemath, the better of its two qualities: infiwebmath-4plus
    opc_math            OpenCoder-LLM/opc-fineweb-math-corpus
    cosmopedia          HuggingFaceTB/cosmopedia, its eight parts in turn

The paper gives no weights. Ours follow the public sizes, from trillions of tokens of web text to about five
billion in the smallest source, but are flatter, so that 100 billion tokens in total read no source more
than about once. They are 48 % web, 10 % other languages, 24 % code, 14 % math and 4 % synthetic text.
Change them in --dataset.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # run as a script, Python looks for modules in this folder only

from configurator import parse  # noqa: E402
from corpus import DataError, files, hub, preparing  # noqa: E402
from corpus.sources import local  # noqa: E402
from corpus.tokenizer_registry import Keys, parse_tokenizer_name  # noqa: E402

WEIGHTS = {
    **{"dclm2": 24, "dclm3plus": 24, "fineweb2": 10, "starcoder": 12, "stack_edu": 12},
    **{"finemath": 5, "infiwebmath": 5, "opc_math": 4, "cosmopedia": 4},
}
COSMOPEDIA = "auto_math_text khanacademy openstax stanford stories web_samples_v1 web_samples_v2 wikihow"


@dataclass
class PrepareConfig(Keys):
    """Nine sources -> OUT/<source>/<tokenizer>, each a data set with train.bin, val.bin and meta.json."""

    out: str = "data/docling_mix"  # folder to write the sources' folders into
    input: str | None = None  # folder of downloads, each called as on the hub; None: read from the hub
    sources: str = ",".join(WEIGHTS)  # which ones, separated by commas
    max_tokens: int = 10_000_000_000  # training tokens of all nine, each source its weight's share
    languages: str = "deu_Latn,fra_Latn,spa_Latn,ita_Latn,por_Latn,jpn_Jpan"  # of fineweb2, in turn
    programming: str = "python,java,javascript,typescript,c,cpp,go,rust"  # folders of starcoder, in turn
    stack_edu_files: str | None = None  # its contents: files, folders or globs, separated by commas
    tokenizer: str = "gpt2"  # gpt2, bytes or a tokenizer.json
    val_fraction: float = 0.0005  # share of the documents kept for validation
    workers: int = os.cpu_count() or 1  # processes that encode

    def check(self) -> list[str]:
        complaints = []
        if unknown := [name for name in split(self.sources) if name not in WEIGHTS]:
            complaints.append(f"sources: no {', '.join(unknown)}; there are {', '.join(WEIGHTS)}")
        for key in ("sources", "languages", "programming"):
            if not split(getattr(self, key)):
                complaints.append(f"--{key} names nothing")
        if self.max_tokens < 1:
            complaints.append(f"--max_tokens must be at least 1, not {self.max_tokens}")
        if self.tokenizer.startswith("bpe:"):
            complaints.append(
                f"--tokenizer={self.tokenizer} would be another one for each source, a mixture has one: "
                "train it with data/text/prepare.py, and give its tokenizer.json"
            )
        return complaints


@dataclass
class Documents:
    """A source of documents: the first two arguments of binary.prepare."""

    documents: Callable[..., Iterator[str | None]]
    about: dict


def main(config: PrepareConfig) -> None:
    chosen = split(config.sources)
    kind, argument = parse_tokenizer_name(config.tokenizer)
    # a tokenizer.json out of data/x/bpe4096 is called bpe4096
    label = argument.resolve().parent.name if isinstance(argument, Path) else kind
    folders = {name: Path(config.out) / name / label for name in chosen}
    finished = [name for name in chosen if (folders[name] / "meta.json").is_file()]
    sources = {name: SOURCES[name](config) for name in finished}  # to be compared with what was asked then
    sources |= open_sources(config, [name for name in chosen if name not in finished])
    for name, source in sources.items():
        print(f"== {name}", file=sys.stderr)
        own = dataclasses.replace(config, out=str(folders[name]))
        budget = -(-config.max_tokens * WEIGHTS[name] // sum(WEIGHTS.values()))
        preparing.run(own, source.documents, source.about, max_tokens=budget)
    mixture = ",".join(f"{folders[name]}:{WEIGHTS[name]}" for name in chosen)
    print(f"Next: python train.py ... --dataset={mixture}")


def open_sources(config: PrepareConfig, names: list[str]) -> dict[str, Documents]:
    """Opens the sources and reads a first document of each. Raises DataError that names all that fail."""
    found: dict[str, Documents] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            source = SOURCES[name](config)
            next(source.documents(), None)
            found[name] = source
        except DataError as error:
            failed[name] = str(error)
    if failed:
        others = ",".join(name for name in split(config.sources) if name not in failed)
        reasons = [f"  {name}: " + reason.replace("\n", "\n    ") for name, reason in failed.items()]
        without = f"To go on without them: --sources={others}" if others else "Nothing is left without them"
        raise DataError(
            "\n".join(["these sources cannot be had, and nothing was written:", *reasons, without])
        )
    return found


def from_hub(
    config: PrepareConfig,
    name: str,
    configs: list[str | None] = (None,),
    folders: list[str] = (),
    field: str = "text",
    score: Callable[[int], bool] | None = None,
    hint: str = "The hub needs network. Run the same command again when it is back",
) -> Documents:
    """A data set of the hub, or its folder in --input: one part (configuration or folder), or several, one
    document of each in turn.

    score: decides from the column edu_int_score whether a document is taken.
    """
    parts = [(None, folder) for folder in folders] or [(part, None) for part in configs]
    place, shown, own = name, f"the data set {name}", name.split("/")[1]
    if config.input is not None:
        place = shown = str(Path(config.input, own))
        if not Path(place).is_dir():
            raise DataError(f"--input={config.input} has no folder {own}, the download of {name}")
    else:
        hint += f", or download {name} into FOLDER/{own} and give --input=FOLDER"

    def document(row: dict, where: str) -> str | None:
        if score is not None:
            if row.get("edu_int_score") is None:
                raise DataError(f"{where}: no edu_int_score, by which documents are chosen")
            if not score(row["edu_int_score"]):
                return None
        return files.text_of(row, field, where)

    def stream(part: str | None, folder: str | None) -> Callable[[dict | None], hub.Stream]:
        form, which = hub.plain(place, part, "train", folder), part or folder
        told = f"{shown} ({which})" if which else shown
        return lambda state: hub.Stream([form], document, told, hint, state)

    streams = [stream(*part) for part in parts]
    about = {"hub": name, "parts": [part or folder for part, folder in parts], "split": "train"}
    return Documents(lambda state=None: hub.InTurn(streams, state), {**about, "field": field})


def dclm(config: PrepareConfig, score: Callable[[int], bool], wording: str) -> Documents:
    source = from_hub(config, "HuggingFaceTB/dclm-edu", score=score)
    source.about["edu_int_score"] = wording
    return source


def starcoder(config: PrepareConfig) -> Documents:
    hint = "It is gated: accept its terms on its page of the hub and log in with `hf auth login`"
    folders = split(config.programming)
    return from_hub(config, "bigcode/starcoderdata", folders=folders, field="content", hint=hint)


def stack_edu(config: PrepareConfig) -> Documents:
    if config.stack_edu_files is None:
        raise DataError(
            "HuggingFaceTB/stack-edu holds ids only, and the contents are Software Heritage's: download "
            "them with the script on the data set's page, and give them as --stack_edu_files=PATH"
        )
    source = local(config.stack_edu_files, ["text"])
    return Documents(source.texts("text"), source.about | {"field": "text"})


def split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


SOURCES: dict[str, Callable[[PrepareConfig], Documents]] = {
    "dclm2": lambda config: dclm(config, lambda score: score == 2, "2"),
    "dclm3plus": lambda config: dclm(config, lambda score: score >= 3, "3 and more"),
    "fineweb2": lambda config: from_hub(config, "HuggingFaceFW/fineweb-2", split(config.languages)),
    "starcoder": starcoder,
    "stack_edu": stack_edu,
    "finemath": lambda config: from_hub(config, "HuggingFaceTB/finemath", ["finemath-4plus"]),
    "infiwebmath": lambda config: from_hub(config, "HuggingFaceTB/finemath", ["infiwebmath-4plus"]),
    "opc_math": lambda config: from_hub(config, "OpenCoder-LLM/opc-fineweb-math-corpus"),
    "cosmopedia": lambda config: from_hub(config, "HuggingFaceTB/cosmopedia", COSMOPEDIA.split()),
}


if __name__ == "__main__":
    try:
        main(parse(PrepareConfig, sys.argv[1:]))
    except DataError as error:
        sys.exit(f"prepare.py: {error}")
