"""BLEU and chrF: numbers that were computed elsewhere, and what is said without sacrebleu."""

import sys

import pytest

from translation import TranslationError, scores


def test_known_scores():
    """Three sentences of Lavik's report."""
    found, signatures = scores.score(
        [
            "Min bok ligger på bordet .",
            "Jeg liker å sitte på skolen når jeg jobber.",
            "Hvem kan kanskje unngå døden?",
        ],
        [
            "Boken min ligger på bordet.",
            "Jeg liker å sitte på skolen når jeg jobber.",
            "Hvem kan vel unnslippe døden?",
        ],
    )
    assert (round(found.bleu, 2), round(found.chrf, 2)) == (69.39, 73.36)
    assert signatures["BLEU"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{scores.TESTED}"
    assert signatures["chrF2"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


LANGUAGES = {
    "zh": ["打开文件。", "今天天气很好。", "我喜欢读书。", "在 BrowserWindow 中调用 app.quit() 即可退出。"],
    "ja-mecab": [
        "ファイルを開きます。",
        "今日は天気がいいです。",
        "新規作成画面印刷設定変更手順書を参照",
    ],
    "ko-mecab": ["파일을 엽니다.", "오늘은 날씨가 좋습니다."],
    "char": ["เปิดไฟล์", "วันนี้อากาศดี"],
    "13a": ["Öffnen Sie die Datei 文件.", "Откройте файл.", "Άνοιξε το αρχείο.", "", "1 + 1"],
}


@pytest.mark.parametrize("tokenizer", LANGUAGES)
def test_the_script_of_the_references_decides(tokenizer):
    assert scores.tokenizer_of(LANGUAGES[tokenizer]) == tokenizer


def test_bleu_of_chinese():
    """With 13a a sentence is one word, so that four of them against themselves have a BLEU of 0."""
    texts = LANGUAGES["zh"][:3]
    found, signatures = scores.score(texts, texts, scores.tokenizer_of(texts))
    assert (round(found.bleu), round(found.chrf)) == (100, 100)
    assert "|tok:zh|" in signatures["BLEU"]
    assert scores.score(texts, texts)[0].bleu == 0
    # 4 of 5 characters, 2 of 4 pairs, 1 of 3 triples, and none of 2 fours, smoothed to 1/2 of 2
    found, _ = scores.score(["打开文章。"], ["打开文件。"], "zh")
    assert found.bleu == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** (1 / 4))


def test_japanese_needs_a_package(monkeypatch):
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(TranslationError, match=r"pip install 'sacrebleu\[ja\]==2.*--bleu_tokenizer=char"):
        scores.check_installed("ja-mecab")


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(TranslationError, match=r"BLEU and chrF need .*: (uv )?pip install sacrebleu=="):
        scores.score(["a"], ["a"])
