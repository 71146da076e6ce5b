"""Text in, tokens out: tokenizers, prepared data sets (folders of flat token files) and their loader."""


class DataError(ValueError):
    """Something is wrong with the text, the tokenizer or a data set; the message says what to do."""
