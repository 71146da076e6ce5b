"""GLUE's metrics over classes 0, 1, ..: shares, not percent."""

import math

import numpy as np


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """int [N] each -> the share that agrees."""
    return float((predicted == true).mean())


def f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Of class 1: 2 TP / (2 TP + FP + FN); 0 where no class 1 is predicted rightly."""
    both = int(((predicted == 1) & (true == 1)).sum())
    either = int((predicted == 1).sum()) + int((true == 1).sum())
    return 2 * both / either if both else 0.0


def matthews(predicted: np.ndarray, true: np.ndarray) -> float:
    """Matthews correlation of two classes, the correlation of the two 0/1 vectors:

        (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN))

    and 0 where one of the vectors is constant.
    """
    table = [[int(((predicted == p) & (true == t)).sum()) for t in (0, 1)] for p in (0, 1)]
    (tn, fn), (fp, tp) = table
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(below) if below else 0.0


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews}


def majority(true: np.ndarray) -> float:
    """The accuracy of always answering the commonest class."""
    return float(np.bincount(true).max() / len(true))
