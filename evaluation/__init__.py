"""Measurements of trained models: perplexity, length extrapolation, recall, MQAR, zero-shot tasks."""


class EvaluationError(ValueError):
    """Something cannot be measured; the message says why and what to do."""
