"""What the three rule sets share: cache elements a token, terms from plain numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from fitkit.model import Model
from fitkit.rules.base import Column, Evidence, IntArray, Term
from fitkit.rules.remember import once_a_model

# The widest pool that is counted; above every model's, low enough that no product overflows 64 bits.
MOST_POOL_TOKENS = 2**40


@once_a_model
def elements_per_token(model: Model) -> Fraction:
    """Elements one more token adds to the cache, over all layers: 2 x layers x kv_heads x head_dim where all are alike.

    Linear in the context: windows are not applied, a latent counts once, states add nothing.
    """
    total = Fraction(0)
    for cache in model.caches():
        total += Fraction(cache.elements_per_token, max(1, cache.ratio))
    return total


@once_a_model
def linear_note(model: Model) -> str:
    """What a formula linear in the context leaves out of this model, in one sentence; empty for plain attention."""
    kinds = {cache.kind for cache in model.caches()}
    if kinds & {"sliding", "chunked"}:
        return "The cache is counted linear in the context, an upper bound for this sliding-window model."
    if "state" in kinds:
        return "The cache is counted linear in the context; this model's recurrent state is not in these rules."
    return ""


def kv_bytes(per_token: Fraction, tokens: IntArray) -> IntArray:
    """Bytes of `tokens` cached tokens, rounded up."""
    return -(-(tokens * per_token.numerator) // per_token.denominator)


def constant(size_bytes: int, like: IntArray) -> IntArray:
    """`size_bytes` for every row."""
    return np.full(like.shape, size_bytes, dtype=np.int64)


def share(total: IntArray, cards: int) -> IntArray:
    """What one of `cards` equal cards holds, rounded up."""
    return -(-total // cards)


def term(
    name: str, column: Column, total: IntArray, per_gpu: IntArray, source: str, evidence: Evidence = "engine"
) -> Term:
    """One term of a published rule."""
    return Term(name=name, column=column, total=total, per_gpu=per_gpu, evidence=evidence, source=source)
