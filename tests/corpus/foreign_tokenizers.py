"""Small tokenizers of the kinds that the hub's models have, built with the library."""

import functools
import json

from corpus.file_tokenizer import BpeTokenizer

BLANK = "\u2581"  # SentencePiece's space
SENTENCES = [
    "The continued fraction of a number, and the fraction of a fraction.",
    "Fellow citizens: a naïve café is 42 miles away!",
] * 8
KINDS = {"byte_level": "</s>", "llama": "</s>", "unigram": "</s>", "wordpiece": "[SEP]"}  # and their ends


@functools.cache  # the library's trainers are not deterministic
def tokenizer_json(kind: str) -> str:
    """The text of a tokenizer.json of one of KINDS."""
    return {"byte_level": _byte_level, "llama": _llama, "unigram": _unigram, "wordpiece": _wordpiece}[
        kind
    ]()


def _byte_level():
    """As Llama 3's: lossless, with another end token, and a beginning that its post-processor adds."""
    content = json.loads(BpeTokenizer.train(SENTENCES, 300).text)
    content["added_tokens"][0]["content"] = "</s>"
    (end,) = (token["id"] for token in content["added_tokens"])
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {token: i for token, i in vocab.items() if i != end}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}},
    }
    return json.dumps(content)


def _llama():
    """As Llama 2's: spaces are letters, one is put before the text, and unknown letters become bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
    )
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    tokenizer.train_from_iterator([text.replace("ï", "i") for text in SENTENCES], trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in special]
    return json.dumps(content)


def _unigram():
    """As T5's and XLM-R's: NFKC, and Viterbi's pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, show_progress=False, special_tokens=["<unk>", "</s>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer.to_str()


def _wordpiece():
    """As BERT's: lower case without accents, and words of pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"]
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer.to_str()
