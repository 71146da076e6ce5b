"""GLUE's metrics over classes 0, 1, .., as shares from 0 to 1 (Matthews: -1 to 1), not in percent."""

import math

import numpy as np


def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """int [N] each -> the share of equal entries."""
    return float((predicted == true).mean())


def f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN); 0 if there is no true positive."""
    both = int(((predicted == 1) & (true == 1)).sum())
    either = int((predicted == 1).sum()) + int((true == 1).sum())
    return 2 * both / either if both else 0.0


def matthews(predicted: np.ndarray, true: np.ndarray) -> float:
    """Matthews correlation of two classes, the correlation of the two 0/1 vectors:

        (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN))

    It is 0 if one of the vectors is constant.
    """
    table = [[int(((predicted == p) & (true == t)).sum()) for t in (0, 1)] for p in (0, 1)]
    (tn, fn), (fp, tp) = table
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(below) if below else 0.0


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews}


def majority(true: np.ndarray) -> float:
    """The accuracy of always predicting the commonest class."""
    return float(np.bincount(true).max() / len(true))
