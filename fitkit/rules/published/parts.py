"""What the three rule sets share: cache elements a token, terms from plain numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from fitkit.model import Model
from fitkit.rules.base import Allocation, Column, Evidence, IntArray, Term
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


def max_parallel_of(pool: int, context: IntArray) -> IntArray:
    """Requests of each context in a pool of so many tokens."""
    return max(pool, 0) // np.maximum(context, 1)


@once_a_model
def linear_note(model: Model) -> str:
    """What a formula linear in the context leaves out of this model, in one sentence; empty for plain attention."""
    if not model.layers:
        return "Only the size of the files is known: the cache is not counted."
    kinds = {cache.kind for cache in model.caches()}
    if kinds & {"sliding", "chunked"}:
        return "The cache is counted linear in the context, an upper bound for this sliding-window model."
    if "state" in kinds:
        return "The cache is counted linear in the context; this model's recurrent state is not in these rules."
    return ""


def kv_bytes(per_token: Fraction, tokens: IntArray) -> IntArray:
    """Bytes of `tokens` cached tokens, rounded up."""
    return -(-(tokens * per_token.numerator) // per_token.denominator)


ONE_TOKEN = np.ones(1, dtype=np.int64)


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


def tokens_in(size_bytes: int, per_token: Fraction) -> int:
    """How many tokens' cache `size_bytes` holds: -1 where it is negative, the most that is counted where a token takes none."""
    if size_bytes < 0:
        return -1
    if not per_token:
        return MOST_POOL_TOKENS
    return min(MOST_POOL_TOKENS, size_bytes * per_token.denominator // per_token.numerator)


def per_gpu_without_cache(allocation: Allocation) -> int:
    """What a card holds beside the cache, of an allocation of one row."""
    return sum(int(part.per_gpu[0]) for part in allocation.terms if part.name != "kv_cache")
