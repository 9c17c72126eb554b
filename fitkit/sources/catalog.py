"""The models the catalog knows: a row of facts/models.csv → Model. One row is built when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

from fitkit import facts
from fitkit.errors import UnknownName
from fitkit.facts import shape
from fitkit.model import Cache, Layer, Model

_LETTERS = {"full": "f", "sliding": "s", "chunked": "c", "latent": "l", "indexer": "i", "compressed": "z"}


@cache
def names(task: str = "text") -> tuple[str, ...]:
    """The catalog's names, the most downloaded first; `task` "text" (generating), "embedding", or "" for all."""
    return tuple(row["name"] for row in facts.rows("models") if task in ("", row["task"]))


def catalog_model(name: str) -> Model | None:
    """The model of this name, alias or hub repository, forgiving in case and punctuation; None where the catalog has none.

    Its basis is "arch": bytes follow from the shape. `name`, `downloads`, `header_bytes` and `source` (the hub repository) are set.
    """
    row = facts.find("models", name)
    return _build(row["name"]) if row else None


def unknown_model(name: str) -> UnknownName:
    """The error for a name that the catalog does not know, with the nearest ones."""
    return UnknownName.among("model", name, (*names(""), *facts.every_name("models")))


@lru_cache(maxsize=512)
def _build(name: str) -> Model:
    from fitkit.sources.config import model_from_config
    from fitkit.sources.packings import packed_as

    row = facts.get("models", name, "model")
    model = model_from_config(shape.decode(row["shape"]), name=row["name"], source=row["repo"], place=row["name"])
    return packed_as(model, row["packing"]).with_(
        downloads=int(row["downloads"] or 0), header_bytes=int(row["gguf_header_bytes"] or 0)
    )


def layer_kinds(layers: Iterable[Layer]) -> str:
    """What each layer keeps, in short: `(s16x128@1024*5,f16x128)*10,s16x128@1024*2`.

    f full, s sliding, c chunked attention as KV heads x K width (/ V width where it differs) @ window; l latent and i indexer with their
    width; z compressed as width : tokens in one; a state by its variant : heads x head width x state width, g groups, k kernel;
    0 a layer that keeps nothing; + joins what one layer keeps; *n repeats.
    """
    return shape.runs(["+".join(map(_cache_kind, layer.caches)) or "0" for layer in layers])


def _cache_kind(cache: Cache) -> str:
    if cache.kind == "state":
        groups = f"g{cache.groups}" if cache.groups else ""
        return f"{cache.variant or 'm'}:{cache.heads}x{cache.head_dim}x{cache.state_dim}{groups}k{cache.conv_kernel}"
    heads = f"{cache.kv_heads}x" if cache.kv_heads else ""
    widths = (
        str(cache.k_dim)
        if cache.v_dim == cache.k_dim or cache.kind in ("latent", "indexer")
        else f"{cache.k_dim}/{cache.v_dim}"
    )
    ratio = f":{cache.ratio}" if cache.ratio != 1 else ""
    window = f"@{cache.window}" if cache.window else ""
    return _LETTERS[cache.kind] + heads + widths + ratio + window
