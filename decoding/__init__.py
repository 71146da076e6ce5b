"""Texts from a model: beam search, and no repeats."""
