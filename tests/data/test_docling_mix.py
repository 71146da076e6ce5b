"""The nine sources of the docling data mix, from stand-ins with the columns of the real ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corpus import DataError, hub
from corpus.mixture import open_dataset
from tests.data.prepare_scripts import ROOT, load_script, write_parquet

pytest.importorskip("datasets")
docling_mix = load_script("docling_mix")
N = 120
NO_FILES = [name for name in docling_mix.WEIGHTS if name != "stack_edu"]


def texts_of(name):
    return [f"{name} {i} " + "and so on " * (i % 5) for i in range(N)]


def texts_of_all(names):
    return [text for name in docling_mix.split(names) for text in texts_of(name)]


def web(name, **more):
    return {
        "text": texts_of(name),
        "id": [f"<urn:{i}>" for i in range(N)],
        "url": ["http://a.org"] * N,
        **more,
    }


@pytest.fixture
def served(request):
    """What the hub has of the eight sources that it has."""
    served = request.getfixturevalue("hub")
    scores = [1 + i % 4 for i in range(N)]
    served["HuggingFaceTB/dclm-edu"] = web(
        "dclm", edu_int_score=scores, edu_score=[float(s) for s in scores]
    )
    for language in docling_mix.split(docling_mix.PrepareConfig.languages):
        served["HuggingFaceFW/fineweb-2", language] = web(language, language_score=[0.9] * N)
    for language in docling_mix.split(docling_mix.PrepareConfig.programming):
        columns = {"max_stars_repo_path": ["a.x"] * N, "content": texts_of(language), "id": list(range(N))}
        served["bigcode/starcoderdata", language] = columns
    for part in ("finemath-4plus", "infiwebmath-4plus"):
        served["HuggingFaceTB/finemath", part] = web(part, token_count=[9] * N, int_score=[4] * N)
    served["OpenCoder-LLM/opc-fineweb-math-corpus"] = web("opc", tag=["math"] * N, line_count=[1] * N)
    for number, part in enumerate(docling_mix.COSMOPEDIA.split()):
        columns = {"prompt": ["Write"] * N, "text": texts_of(part), "audience": ["all"] * N}
        # the parts have their columns in different orders
        served["HuggingFaceTB/cosmopedia", part] = dict(sorted(columns.items(), reverse=number % 2 == 1))
    return served


@pytest.fixture
def stack(tmp_path):
    folder = tmp_path / "stack"
    folder.mkdir()
    write_parquet(folder, {"blob_id": ["ab"] * N, "language": ["C"] * N, "text": texts_of("stack")})
    return str(folder)


def run(out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, "max_tokens": 10**6, **keys}
    config = docling_mix.PrepareConfig(out=str(out), **keys)
    assert config.check() == []
    docling_mix.main(config)


def meta(folder):
    return json.loads((folder / "meta.json").read_text())


def test_nine_sources_and_the_mixture_of_them(tmp_path, served, stack, texts, capsys):
    run(tmp_path / "mix", stack_edu_files=stack)
    read = {name: texts(tmp_path / "mix" / name / "bytes") for name in docling_mix.WEIGHTS}
    dclm = texts_of("dclm")
    expected = {
        "dclm2": dclm[1::4],
        "dclm3plus": dclm[2::4] + dclm[3::4],
        "fineweb2": texts_of_all(docling_mix.PrepareConfig.languages),
        "starcoder": texts_of_all(docling_mix.PrepareConfig.programming),
        "stack_edu": texts_of("stack"),
        "finemath": texts_of("finemath-4plus"),
        "infiwebmath": texts_of("infiwebmath-4plus"),
        "opc_math": texts_of("opc"),
        "cosmopedia": texts_of_all(",".join(docling_mix.COSMOPEDIA.split())),
    }
    assert list(read) == list(expected)
    for name, found in expected.items():
        assert sorted(read[name]) == sorted(found), name
    assert meta(tmp_path / "mix" / "dclm2" / "bytes")["left_out"] == N - N // 4
    source = meta(tmp_path / "mix" / "starcoder" / "bytes")["source"]
    assert source["hub"] == "bigcode/starcoderdata"
    assert source["parts"][:2] == ["python", "java"]
    assert source["max_tokens"] == 120_000

    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Next: python train.py ... --dataset=")
    mixture = open_dataset(line.partition("--dataset=")[2], "train", 16)
    assert mixture.names == list(docling_mix.WEIGHTS)
    assert [int(weight * 100) for weight in mixture.shares.weights] == list(docling_mix.WEIGHTS.values())
    assert mixture.windows(0, 200).shape == (200, 17)

    served["asked"].clear()
    run(tmp_path / "mix", stack_edu_files=stack)
    assert served["asked"] == []  # what is finished is not looked for again
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_what_is_finished_is_compared_with_what_is_asked(tmp_path, served, stack):
    keys = {"sources": "stack_edu", "stack_edu_files": stack}
    run(tmp_path / "mix", **keys)
    before = (tmp_path / "mix/stack_edu/bytes/meta.json").read_bytes()
    with pytest.raises(DataError, match=r"(?s)prepared otherwise.*max_tokens"):
        run(tmp_path / "mix", max_tokens=10**5, **keys)
    write_parquet(Path(stack), {"text": texts_of("other")})
    with pytest.raises(DataError, match=r"(?s)prepared otherwise.*sha256"):
        run(tmp_path / "mix", **keys)
    assert (tmp_path / "mix/stack_edu/bytes/meta.json").read_bytes() == before


def test_each_source_gets_its_share_of_the_tokens(tmp_path, served):
    """A part of each language is read, however small the share."""
    run(tmp_path / "mix", sources="fineweb2,opc_math", max_tokens=40_000)
    for name, budget in (("fineweb2", 4000), ("opc_math", 1600)):
        tokens = meta(tmp_path / "mix" / name / "bytes")["splits"]["train"]["tokens"]
        assert budget <= tokens < budget + 80
    assert os.listdir(tmp_path / "mix" / "fineweb2") == ["bytes"]
    asked = {(path, part) for path, part, *_ in served["asked"]}
    assert len(asked) == 7


def test_what_cannot_be_had_is_said_before_anything_is_written(tmp_path, served):
    gated = RuntimeError("Dataset 'bigcode/starcoderdata' is a gated dataset on the Hub")
    served["bigcode/starcoderdata", "python"] = gated
    with pytest.raises(DataError) as caught:
        run(tmp_path / "mix")
    said = str(caught.value)
    assert "\n  starcoder: " in said
    assert "gated dataset on the Hub\n    It is gated" in said
    assert "\n  stack_edu: HuggingFaceTB/stack-edu" in said
    others = "dclm2,dclm3plus,fineweb2,finemath,infiwebmath,opc_math,cosmopedia"
    assert said.endswith(f"\nTo go on without them: --sources={others}")
    assert not (tmp_path / "mix").exists()
    run(tmp_path / "mix", sources="finemath,opc_math")
    assert sorted(os.listdir(tmp_path / "mix")) == ["finemath", "opc_math"]
    with pytest.raises(DataError, match="Nothing is left without them"):
        run(tmp_path / "mix", sources="starcoder")
    with pytest.raises(DataError, match="gone: no such file"):
        run(tmp_path / "mix", sources="stack_edu", stack_edu_files=str(tmp_path / "gone"))


def test_rows_without_a_score_are_refused(tmp_path, served):
    served["HuggingFaceTB/dclm-edu"] = web("dclm")
    with pytest.raises(DataError, match=r"dclm2: .*dclm-edu, row 1: no edu_int_score"):
        run(tmp_path / "mix", sources="dclm2")


def test_a_tokenizer_of_a_file_names_the_folder(tmp_path, served, texts):
    from corpus.file_tokenizer import BpeTokenizer

    path = tmp_path / "bpe300" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text(BpeTokenizer.train(texts_of("opc"), 300).text)
    run(tmp_path / "mix", sources="opc_math", tokenizer=str(path))
    assert meta(tmp_path / "mix" / "opc_math" / "bpe300")["vocab_size"] <= 300


def test_settings_are_checked():
    config = docling_mix.PrepareConfig(
        sources="dclm2,dclm4", languages=" ,", programming="", max_tokens=0, tokenizer="bpe:300"
    )
    complaints = "\n".join(config.check())
    for part in (
        "no dclm4",
        "--languages names",
        "--programming names",
        "at least 1",
        "has one",
    ):
        assert part in complaints
    assert docling_mix.PrepareConfig().check() == []
    assert sum(docling_mix.WEIGHTS.values()) == 100
    assert list(docling_mix.WEIGHTS) == list(docling_mix.SOURCES)


def test_parts_in_turn_go_on_after_an_interruption(served):
    """Parts of different sizes: each row once, and a state means the same whichever part it stands in."""
    served["owner/name", "a"] = {"text": [f"a {i}" for i in range(3)], "more": [1] * 3}
    served["owner/name", "b"] = {"text": [f"b {i}" for i in range(11)]}
    served["owner/name", "c"] = {"text": [f"c {i}" for i in range(30)]}

    def part(config):
        form = hub.plain("owner/name", config, "train")
        return lambda state: hub.Stream([form], lambda row, where: row["text"], "", "", state)

    def stream(state=None):
        return hub.InTurn([part("a"), part("b"), part("c")], state)

    whole = list(stream())
    assert whole[:4] == ["a 0", "b 0", "c 0", "a 1"]
    assert len(set(whole)) == len(whole) == 44
    for n in (0, 1, 5, 9, 10, 27, 28, 43, 44):
        first = stream()
        found = [next(first) for _ in range(n)]
        assert found + list(stream(json.loads(json.dumps(first.state())))) == whole


def test_without_network(tmp_path):
    """The real library, kept offline by its own switch."""
    command = [
        sys.executable,
        "data/docling_mix/prepare.py",
        f"--out={tmp_path / 'mix'}",
        "--sources=opc_math",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was written:\n  opc_math: " in done.stderr
    assert "Offline" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []
