"""What translate.py is made of: sources, decoding in batches, BLEU and chrF."""


class TranslationError(ValueError):
    """Something cannot be translated or scored; the message says why and what to do."""
