"""Text in, tokens out: tokenizers, prepared data sets (folders of flat token files) and their loader."""


class DataError(ValueError):
    """The text, the tokenizer or a data set is wrong; the message says how and what to do."""


class VocabularyError(DataError):
    """A data set has more tokens than the model's vocabulary."""
