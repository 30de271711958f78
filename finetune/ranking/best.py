"""Finds the highest of many scores."""

import numpy as np


def take_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the k highest scores, the best first; of equal ones those that come first."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    places = np.concatenate([above, equal[: k - len(above)]])
    return places[np.lexsort((places, -scores[places]))]
