"""Measurements of trained models: perplexity, length extrapolation, zero-shot tasks."""


class EvaluationError(ValueError):
    """What cannot be measured; says why and what to do."""
