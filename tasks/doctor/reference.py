"""The SQuAD loss of a BERT model in NumPy and float64: the referee of bert-doctor, independent of TensorFlow.

Devlin et al. 2019; Vaswani et al. 2017, section 3.2; google-research/bert `modeling.py` and `run_squad.py`.
Tensors are named as in Google's checkpoints. The suffixes of arrays: T tokens, H hidden, N heads, I inner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, log_softmax, softmax

LAYER_NORM_EPSILON = 1e-12
TABLES = ("word", "token_type", "position")


@dataclass(frozen=True)
class Window:
    """One example: its tokens, how many of them are of type 0, and the answer's first and last token."""

    input_ids: np.ndarray
    question_tokens: int
    start: int
    end: int


def mean_loss(tensors: Mapping[str, np.ndarray], windows: Sequence[Window], num_heads: int) -> float:
    """The mean over the windows of (cross-entropy of the start + cross-entropy of the end) / 2."""
    return float(np.mean([_loss(tensors, window, num_heads) for window in windows]))


def slope(
    tensors: Mapping[str, np.ndarray],
    direction: Mapping[str, np.ndarray],
    windows: Sequence[Window],
    num_heads: int,
    step: float = 1e-4,
) -> float:
    """The derivative of the mean loss along a direction, by central differences."""
    losses = [
        mean_loss({name: tensors[name] + sign * step * direction[name] for name in tensors}, windows, num_heads)
        for sign in (1, -1)
    ]
    return (losses[0] - losses[1]) / (2 * step)


def _loss(tensors: Mapping[str, np.ndarray], window: Window, num_heads: int) -> float:
    tokens = np.arange(len(window.input_ids))
    kinds = (tokens >= window.question_tokens).astype(int)
    word, kind, position = (tensors[f"bert/embeddings/{name}_embeddings"] for name in TABLES)
    embedded_TH = word[window.input_ids] + kind[kinds] + position[tokens]
    hidden_TH = _normalised(tensors, "bert/embeddings/LayerNorm", embedded_TH)
    layer = 0
    while f"bert/encoder/layer_{layer}/output/dense/kernel" in tensors:
        hidden_TH = _layer(tensors, f"bert/encoder/layer_{layer}", hidden_TH, num_heads)
        layer += 1
    scores_T2 = hidden_TH @ tensors["cls/squad/output_weights"].T + tensors["cls/squad/output_bias"]
    log_probs_T2 = log_softmax(scores_T2, axis=0)
    return -(log_probs_T2[window.start, 0] + log_probs_T2[window.end, 1]) / 2


def _layer(tensors: Mapping[str, np.ndarray], scope: str, hidden_TH: np.ndarray, num_heads: int) -> np.ndarray:
    query, key, value = (
        _linear(tensors, f"{scope}/attention/self/{part}", hidden_TH)
        .reshape(len(hidden_TH), num_heads, -1)
        .transpose(1, 0, 2)
        for part in ("query", "key", "value")
    )
    scores_NTT = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    context_TH = (softmax(scores_NTT, axis=-1) @ value).transpose(1, 0, 2).reshape(hidden_TH.shape)
    branch_TH = _linear(tensors, f"{scope}/attention/output/dense", context_TH)
    hidden_TH = _normalised(tensors, f"{scope}/attention/output/LayerNorm", hidden_TH + branch_TH)
    inner_TI = _linear(tensors, f"{scope}/intermediate/dense", hidden_TH)
    activated_TI = inner_TI * (1 + erf(inner_TI / np.sqrt(2))) / 2  # GELU
    branch_TH = _linear(tensors, f"{scope}/output/dense", activated_TI)
    return _normalised(tensors, f"{scope}/output/LayerNorm", hidden_TH + branch_TH)


def _linear(tensors: Mapping[str, np.ndarray], scope: str, x: np.ndarray) -> np.ndarray:
    return x @ tensors[f"{scope}/kernel"] + tensors[f"{scope}/bias"]


def _normalised(tensors: Mapping[str, np.ndarray], scope: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPSILON)
    return centred / deviation * tensors[f"{scope}/gamma"] + tensors[f"{scope}/beta"]
