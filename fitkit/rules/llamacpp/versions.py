"""What changed in what a build allocates. The builds between two seen ones were not looked at."""

from __future__ import annotations

# behaviour -> first build known to have it. Between the newest logged build without it and this one nobody looked.
FIRST_BUILD = {
    "server_limits_outputs": 11434,  # logits for the slots, not the whole batch; logs of b9010 to b9305 are without it
    "f16_masks": 11434,  # masks come as f16; before, as f32 with an f16 copy for flash attention
    "mixed_batches": 11434,  # tokens and vectors in one batch: two more inputs of the embedding's width
}
NEWEST_SEEN = 11739


def has(build: int, behaviour: str) -> bool:
    """Whether a build behaves so."""
    return build >= FIRST_BUILD[behaviour]


def is_seen(build: int) -> bool:
    """Whether the rules were checked on this build or between checked ones."""
    return min(FIRST_BUILD.values()) <= build <= NEWEST_SEEN
