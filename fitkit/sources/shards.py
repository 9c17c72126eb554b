"""The safetensors headers of a repository: which files, then their headers, several at once and no more than the index lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from fitkit.errors import BadInput
from fitkit.sources.checkpoint import index_of
from fitkit.sources.repos import Repo
from fitkit.sources.safetensors import MOST_HEADER_BYTES, Header, read_header

# The largest published checkpoint has 276,000 tensors, and an index; without one there are a few files of some hundreds.
MOST_FILES, MOST_TENSORS, MOST_UNLISTED = 1024, 2**19, 2**16
_AT_ONCE, _MOST_INDEX = 8, 64 * 2**20
_INDEX = "model.safetensors.index.json"
_FIRST, _MOST_FIRST = 2**15, 2**22  # bytes of a header asked for at once: what the index lets expect, within these
_ENTRY = 110  # bytes of a header's entry beside the tensor's name, about


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The weight files, what the index says of each (tensors, bytes of header about), and its total [bytes]; 0: not said."""

    names: Sequence[str]
    total: int = 0
    tensors: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)


def shards_of(repo: Repo) -> Shards:
    """The files that make up the model: those of the index, else the .safetensors at the top."""
    if _INDEX not in repo.files:
        found = [name for name in repo.files if name.endswith(".safetensors") and "/" not in name]
        usual = [name for name in found if not name.startswith(("consolidated", "adapter_"))]
        return Shards(names=sorted(usual or found))
    index = repo.json(_INDEX, _MOST_INDEX)
    names, total = index_of(index, f"{repo.id}/{_INDEX}")
    lengths: Counter[str] = Counter()
    for tensor, name in index["weight_map"].items():
        lengths[name] += len(tensor) + _ENTRY
    return Shards(names=names, total=total, tensors=Counter(index["weight_map"].values()), lengths=lengths)


def headers_of(repo: Repo, shards: Shards) -> dict[str, Header]:
    """The headers of the weight files: their bytes come several at once, one after another is parsed.

    Raises BadInput where they hold more than any model, or far more than the index lists.
    """
    if len(shards.names) > MOST_FILES or sum(shards.tensors.values()) > MOST_TENSORS:
        raise BadInput(f"{repo.id} has {len(shards.names):,} weight files with more tensors than any model.")
    headers: dict[str, Header] = {}
    left = MOST_TENSORS if shards.tensors else MOST_UNLISTED
    with ThreadPoolExecutor(min(_AT_ONCE, len(shards.names)), thread_name_prefix="fitkit-headers") as pool:
        waiting = [(name, pool.submit(_header_bytes, repo, name, shards.lengths.get(name, 0))) for name in shards.names]
        try:
            for name, future in waiting:
                size, raw = future.result()
                place, found = f"{repo.id}/{name}", raw.count(b'"data_offsets"')
                left -= found
                if left < 0 or (shards.tensors and found > 2 * shards.tensors[name] + 1024):
                    raise BadInput(
                        f"{place} has {found:,} tensors, more than {'its index lists' if left >= 0 else 'any model'}."
                    )
                headers[name] = read_header(lambda at, n, raw=raw: raw[at : at + n], size, place)  # type: ignore[misc]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return headers


def _header_bytes(repo: Repo, name: str, expected: int) -> tuple[int, bytes]:
    """A file's size and its bytes up to the header's end; only the length where that is too large."""
    file = repo.open(name, min(max(expected, _FIRST), _MOST_FIRST), grow=0)
    length = int.from_bytes(file.read(0, 8), "little")
    return file.size, file.read(0, 8 + length) if length <= MOST_HEADER_BYTES else file.read(0, 8)
