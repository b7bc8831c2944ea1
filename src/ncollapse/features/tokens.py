"""Models that classify tokens: which token counts as a sample, and with which label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncollapse.features.classifier import tensors_of, tolerance


@dataclass(frozen=True)
class TokenRule:
    """How labels [B, T] belong to the vectors [B, T, d] of a model.

    shift: the vector at position t is classified as the label at t + 1, as in a causal language model whose labels are
    its inputs. None: decided by the model, see `predicts_next_token`.
    ignore_index: samples and tokens with this label are left out.
    """

    shift: bool | None = None
    ignore_index: int = -100

    def shifts(self, model: Any) -> bool:
        """Whether labels are shifted for this model."""
        return predicts_next_token(model) if self.shift is None else self.shift


def predicts_next_token(model: Any) -> bool:
    """Whether a model is a causal language model of Hugging Face, which shifts the labels itself to compute its loss.

    Encoder-decoder models do not: their labels are aligned with the output of the decoder.
    """
    can_generate = getattr(model, "can_generate", None)
    encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return callable(can_generate) and can_generate() is True and not encodes


class TokenSelection:
    """The tokens of one batch that are samples: those with a label, neither ignored nor padding.

    Args:
        labels: [B, T].
        inputs: what the model was called with; an `attention_mask` [B, T] in it marks padding by 0.
        shift: whether the label at t + 1 belongs to the vector at t.
        ignore_index: the label of tokens that are left out.
    """

    def __init__(self, labels: Tensor, inputs: Any, shift: bool, ignore_index: int) -> None:
        self.shape, self.shift = labels.shape, shift
        kept = labels != ignore_index
        mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
        if isinstance(mask, Tensor) and mask.shape == labels.shape:
            real = mask.to(labels.device) != 0
            kept = kept & real
            if shift:
                kept[:, 1:] &= real[:, :-1]
        self.kept = kept[:, 1:] if shift else kept
        self.labels = (labels[:, 1:] if shift else labels)[self.kept]

    def rows(self, vectors: Tensor, name: str) -> Tensor:
        """The selected vectors [M, d] of [B, T, d], or of [B * T, d]."""
        if vectors.ndim == 2 and len(vectors) == self.shape.numel():
            vectors = vectors.reshape(*self.shape, -1)
        if vectors.ndim != 3 or vectors.shape[:2] != self.shape:
            hint = "pass split=, a function from a batch to (inputs, labels)"
            if vectors.ndim == 2 and len(vectors) == self.shape[0]:
                hint = "one-hot or soft labels: pass labels.argmax(1), with split="
            raise ValueError(
                f"labels: expected one integer for each vector, got {list(self.shape)} for {name}, of shape "
                f"{list(vectors.shape)}; {hint}"
            )
        return (vectors[:, :-1] if self.shift else vectors)[self.kept.to(vectors.device)]


def pool_tokens(tokens: Tensor, scores: Tensor, output: Any, layer: str) -> Tensor:
    """Of tokens [B, T, d] that all entered the classifier, those whose logits [B, K] are returned, or their mean.

    The model returns the scores of one token as they are, or the mean of all, which is the score of the mean token.
    """
    logits = next(tensors_of(output), None)
    if logits is None or logits.shape != (len(scores), scores.shape[2]):
        raise ValueError(
            f"features: {tuple(tokens.shape)} enters the classifier {layer!r}, one vector a token, so that labels "
            "[B, T] are needed, one a token; or a model that classifies whole samples"
        )
    same = (scores.to(logits.dtype) == logits[:, None]).all(2)
    if bool(same.any(1).all()):
        return tokens[torch.arange(len(tokens), device=tokens.device), same.int().argmax(1)]
    wide = torch.promote_types(tokens.dtype, torch.float32)
    error = (scores.mean(1, dtype=wide) - logits).abs().max()
    if not bool(error <= tolerance(scores, logits) * scores.abs().max()):
        raise ValueError(
            f"features: what the model returns is neither the output of the classifier {layer!r} for one token nor the "
            "mean over all tokens; give a model that returns the pooled features, with head=, their classifier"
        )
    return tokens.mean(1, dtype=wide)
