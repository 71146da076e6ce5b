"""FineWeb's long documents, FineWeb-Edu up to some number of tokens, GneissWeb through a Bloom filter."""

import json
import os
import subprocess
import sys
import uuid

import pytest

from corpus import DataError, hub
from tests.data.prepare_scripts import ROOT, load_script

pytest.importorskip("datasets")
rbloom = pytest.importorskip("rbloom")
fineweb_script = load_script("fineweb")
fineweb_edu = load_script("fineweb_edu")
gneissweb = load_script("gneissweb")
N = 80
IDS = [f"<urn:uuid:{uuid.UUID(int=i * 7919)}>" for i in range(N)]
TEXTS = [f"Document {i} " + "of a crawl " * (i % 6) for i in range(N)]


def columns(**more):
    return {
        "text": TEXTS,
        "id": IDS,
        "dump": ["CC-MAIN-2013-20"] * N,
        "url": ["http://example.org"] * N,
        "date": ["2013-05-18T05:48:54Z"] * N,
        "file_path": ["s3://commoncrawl/x.warc.gz"] * N,
        "language": ["en"] * N,
        "language_score": [0.9] * N,
        "token_count": [9] * N,
        **more,
    }


def run(script, out, **keys):
    keys = {"tokenizer": "bytes", "val_fraction": 0.2, "workers": 1, **keys}
    script.main(script.PrepareConfig(out=str(out), **keys))
    return json.loads((out / "meta.json").read_text())


@pytest.fixture
def edu(request):
    served = request.getfixturevalue("hub")
    served[fineweb_edu.NAME] = columns(score=[3.1] * N, int_score=[3] * N)
    return served


@pytest.fixture
def fineweb(request):
    served = request.getfixturevalue("hub")
    served[gneissweb.FINEWEB] = columns()
    return served


def make_filter(path, ids):
    bloom = rbloom.Bloom(1000, 1e-9, gneissweb.hash_id)
    bloom.update(ids)
    bloom.save(str(path))
    return str(path)


def test_fineweb_edu(tmp_path, edu, texts):
    meta = run(fineweb_edu, tmp_path / "set")
    assert sorted(texts(tmp_path / "set")) == sorted(TEXTS)
    assert edu["asked"] == [("HuggingFaceFW/fineweb-edu", "sample-10BT", "train", None)]
    assert meta["source"] == {"hub": "HuggingFaceFW/fineweb-edu", "config": "sample-10BT", "split": "train"}


def test_fineweb_edu_up_to_a_number_of_tokens(tmp_path, edu, texts):
    meta = run(fineweb_edu, tmp_path / "set", max_tokens=500, hub_config="default")
    train = meta["splits"]["train"]
    last = texts(tmp_path / "set", "train")[-1]
    assert train["tokens"] - len(last) - 1 < 500 <= train["tokens"]
    assert sorted(texts(tmp_path / "set")) == sorted(TEXTS[: meta["documents_read"]])
    assert meta["source"]["max_tokens"] == 500
    assert edu["asked"][0][1] == "default"


def test_fineweb_in_three_splits_without_short_documents(tmp_path, fineweb, texts, capsys):
    """A byte is a token here."""
    meta = run(fineweb_script, tmp_path / "set", min_tokens=45, max_tokens=None, test_fraction=0.3)
    long = [text for text in TEXTS if len(text) >= 45]
    assert 0 < len(long) < N
    assert any(len(text) == 45 for text in long)
    assert sorted(texts(tmp_path / "set", "train", "val", "test")) == sorted(long)
    assert meta["left_out"] == N - len(long)
    assert f"kept {len(long) / N:.2%} of 80 documents read" in capsys.readouterr().out
    assert all(count["documents"] for count in meta["splits"].values())
    assert fineweb["asked"] == [("HuggingFaceFW/fineweb", "sample-100BT", "train", None)]
    asked = {"min_tokens": 45, "test_fraction": 0.3}
    assert meta["source"] == {
        "hub": "HuggingFaceFW/fineweb",
        "config": "sample-100BT",
        "split": "train",
        **asked,
    }


def test_fineweb_as_the_protocol_has_it(tmp_path, fineweb, texts):
    """The shares are those of 600, 50 and 50 million."""
    config = fineweb_script.PrepareConfig()
    assert (config.min_tokens, config.max_tokens) == (4000, 600_000_000)
    others = config.val_fraction + config.test_fraction
    assert config.max_tokens * config.val_fraction / (1 - others) == pytest.approx(50e6)
    assert config.val_fraction == config.test_fraction
    with pytest.raises(DataError, match=r"80 documents.* 80 .* 0 empty"):
        run(fineweb_script, tmp_path / "set")
    plain = run(fineweb_script, tmp_path / "plain", min_tokens=0, test_fraction=0.0, max_tokens=500)
    assert list(plain["splits"]) == ["train", "val"]
    assert plain["splits"]["train"]["tokens"] >= 500
    assert plain["left_out"] == 0


def test_gneissweb(tmp_path, fineweb, texts, capsys):
    known = [i for i in range(N) if i % 3]
    path = make_filter(tmp_path / "x.bloom", [IDS[i] for i in known])
    meta = run(gneissweb, tmp_path / "set", bloom=path, max_tokens=10**6)
    assert sorted(texts(tmp_path / "set")) == sorted(TEXTS[i] for i in known)
    assert meta["documents_read"] == N
    assert meta["left_out"] == N - len(known)
    assert "kept 66.25% of 80 documents read" in capsys.readouterr().out
    assert fineweb["asked"] == [("HuggingFaceFW/fineweb", "sample-100BT", "train", None)]
    assert meta["source"]["filter"].startswith("sha256 ")
    short = run(gneissweb, tmp_path / "short", bloom=path, max_tokens=500, hub_config="CC-MAIN-2024-10")
    assert short["splits"]["train"]["tokens"] >= 500
    assert short["documents_read"] < N
    kept = short["documents_read"] - short["left_out"]
    assert sorted(texts(tmp_path / "short")) == sorted(TEXTS[i] for i in known[:kept])


def test_the_hash_is_the_one_of_the_filter():
    """SHA-256 of the id's pickle in protocol 4, its first half as a signed number, high byte first."""
    import hashlib

    document_id = "<urn:uuid:39147604-bfbe-4ed5-b19c-54105f8ae8a7>"
    content = document_id.encode()
    pickled = b"\x80\x04\x95" + (len(content) + 4).to_bytes(8, "little")
    pickled += b"\x8c" + bytes([len(content)]) + content + b"\x94."
    digest = hashlib.sha256(pickled).digest()[:16]
    assert gneissweb.hash_id(document_id) == int.from_bytes(digest, "big", signed=True)
    assert any(gneissweb.hash_id(text) < 0 for text in IDS)


def serve_filter(monkeypatch, path, size=None):
    """The repository of the filter, with that file in it."""
    import huggingface_hub
    from huggingface_hub.hf_api import RepoSibling

    class Info:
        siblings = (
            RepoSibling(rfilename="README.md", size=3),
            RepoSibling(rfilename="the.bloom", size=size or os.path.getsize(path)),
        )

    asked = []

    def download(*arguments):
        asked.append(arguments)
        return path

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: Info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


def test_the_filter_of_the_hub(tmp_path, fineweb, texts, monkeypatch):
    asked = serve_filter(monkeypatch, make_filter(tmp_path / "x.bloom", IDS[:50]))
    meta = run(gneissweb, tmp_path / "set", max_tokens=10**6)
    assert asked == [("ibm-granite/GneissWeb.bloom", "the.bloom")]
    assert sorted(texts(tmp_path / "set")) == sorted(TEXTS[:50])
    assert meta["source"]["filter"] == "ibm-granite/GneissWeb.bloom"


def test_a_filter_that_does_not_fit(tmp_path, fineweb, monkeypatch):
    path = make_filter(tmp_path / "x.bloom", IDS)
    asked = serve_filter(monkeypatch, path, size=28_000_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(gneissweb, "available_memory", lambda: 16_000_000_000)
        with pytest.raises(DataError, match=r"28\.0 GB .*16\.0 GB"):
            run(gneissweb, tmp_path / "set", max_tokens=1000)
        patch.setattr(gneissweb, "available_memory", lambda: 64_000_000_000)
        patch.setattr(gneissweb.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**10}))
        with pytest.raises(DataError, match=r"filter .*28\.0 GB .*10\.0 GB"):
            run(gneissweb, tmp_path / "set", max_tokens=1000)
        with pytest.raises(DataError, match=r"tokens .*70\.0 GB .*10\.0 GB"):
            run(gneissweb, tmp_path / "set")
    assert asked == []
    monkeypatch.setattr(gneissweb, "available_memory", lambda: 100)
    with pytest.raises(DataError, match="GB of memory"):
        run(gneissweb, tmp_path / "set", bloom=path, max_tokens=1000)
    assert os.listdir(tmp_path) == ["x.bloom"]


def test_available_memory():
    assert 10**8 < gneissweb.available_memory() < 10**14


def test_a_filter_of_something_else(tmp_path, fineweb, monkeypatch):
    monkeypatch.setattr(gneissweb, "PROBE", 70)
    path = make_filter(tmp_path / "x.bloom", ["other"])
    with pytest.raises(DataError, match="first 70 documents"):
        run(gneissweb, tmp_path / "set", bloom=path, max_tokens=1000)
    (tmp_path / "x.bloom").write_bytes(b"short")
    with pytest.raises(DataError, match=r"x\.bloom cannot be read"):
        run(gneissweb, tmp_path / "set", bloom=path, max_tokens=1000)
    config = gneissweb.PrepareConfig(bloom=str(tmp_path / "gone"))
    assert config.check() == [f"--bloom={tmp_path / 'gone'}: no such file"]
    monkeypatch.setitem(sys.modules, "rbloom", None)
    with pytest.raises(DataError, match="pip install rbloom"):
        run(gneissweb, tmp_path / "set", bloom=path, max_tokens=1000)


@pytest.mark.parametrize("name", ["openwebtext", "fineweb", "fineweb_edu", "gneissweb"])
def test_without_network(tmp_path, name):
    """The real libraries, kept offline by their own switch: one clear error, and nothing is left."""
    command = [sys.executable, f"data/{name}/prepare.py", f"--out={tmp_path / 'set'}", "--tokenizer=bytes"]
    if name == "gneissweb":
        command.append("--max_tokens=1000")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "\nprepare.py: the " in "\n" + done.stderr
    assert "Offline" in done.stderr
    assert "The hub needs network" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_streams_of_fineweb_go_on_after_an_interruption(tmp_path, fineweb, monkeypatch):
    """The filter's verdicts count as documents read, so a state means the same with and without it."""
    path = make_filter(tmp_path / "x.bloom", IDS[::2])
    bloom = gneissweb.load_filter(path)
    forms = [hub.plain(gneissweb.FINEWEB, "default", "train")]
    first = hub.Stream(forms, gneissweb.Selection(bloom), "", "")
    found = [next(first) for _ in range(31)]
    found += hub.Stream(forms, gneissweb.Selection(bloom), "", "", first.state())
    assert found == [text if i % 2 == 0 else None for i, text in enumerate(TEXTS)]
