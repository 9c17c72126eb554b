"""Which GGUF files a repository has: parts joined, quantizations by name, projectors beside their models. Names and sizes only.

Source: how llama.cpp chooses from a repository (common/download.cpp: split names, tags, companions, the closest projector).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from fitkit.errors import BadInput, UnknownName, printable, short
from fitkit.sources.gguf import part_names
from fitkit.units import show_gb

_SPLIT = re.compile(r"-(\d{5})-of-\d{5}$")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d(?:_\d)?|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))$",
    re.IGNORECASE,
)
_BITS = re.compile(r"\d+")
# In a file's name; such a file is loaded beside a model, or not at all.
_COMPANIONS = {
    "mmproj": "mmproj",
    "imatrix": "imatrix",
    "mtp-": "draft",
    "eagle3-": "draft",
    "dflash-": "draft",
    "dspark-": "draft",
}
_MOST_LISTED = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One model, or one companion, as the files that make it up."""

    kind: str  # model, mmproj, imatrix, draft
    quant: str  # Q4_K_M, UD-Q4_K_XL, ...; "" where the name says none
    files: tuple[str, ...]  # all parts, in order
    bytes: int | None  # of all parts; None where the hub does not say

    @property
    def path(self) -> str:
        """The first file, with its directory."""
        return self.files[0]


def variants(files: Mapping[str, int | None]) -> list[Variant]:
    """The GGUF models and companions among `files` (name → bytes), the largest model first.

    Raises BadInput where a part of a split file is missing.
    """
    found = []
    for name in sorted(files):
        path = PurePosixPath(name)
        split = _SPLIT.search(path.stem)
        if path.suffix != ".gguf" or (split and int(split[1]) != 1):
            continue
        parts = tuple(str(path.with_name(part)) for part in part_names(path.name))
        if missing := [part for part in parts if part not in files]:
            raise BadInput(
                f"{printable(name)} is one of {len(parts)} parts, and {printable(missing[0])} is not beside it."
            )
        sizes = [files[part] for part in parts]
        size = sum(one for one in sizes if one is not None) if None not in sizes else None
        found.append(Variant(kind=_kind(path.name), quant=quant_in(name), files=parts, bytes=size))
    return sorted(found, key=lambda one: (one.kind != "model", -(one.bytes or 0), one.path))


def _kind(name: str) -> str:
    return next((kind for word, kind in _COMPANIONS.items() if word in name.lower()), "model")


def quant_in(name: str) -> str:
    """The quantization that a file's name ends in, else its directory; "" where neither says one.

    >>> quant_in("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf"), quant_in("model-f16.gguf"), quant_in("model.gguf")
    ('UD-Q4_K_XL', 'F16', '')
    """
    path = PurePosixPath(name)
    for text in (_SPLIT.sub("", path.stem), path.parent.name):
        if match := _QUANT.search(text):
            return match[1].upper()
    return ""


def choose(found: Iterable[Variant], asked: str, repo: str) -> Variant:
    """The model of a repository that `asked` names by its quantization; "" where there is only one.

    Raises UnknownName, listing what there is with sizes, where none or more than one is meant.
    """
    models = [one for one in found if one.kind == "model"]
    if not models:
        raise BadInput(f"{printable(repo)} holds no GGUF model.")
    if not asked:
        if len(models) == 1:
            return models[0]
        raise UnknownName(
            f"{printable(repo)} holds {len(models)} quantizations; say which as '{printable(repo)}:{models[0].quant or 'NAME'}'. It has {listed(models)}.",
            tuple(one.quant or one.path for one in models[:3]),
        )
    wanted = asked.upper()
    for match in (
        [one for one in models if one.quant == wanted],
        [one for one in models if one.quant.removeprefix("UD-") == wanted],
        [one for one in models if re.search(re.escape(asked) + "[.-]", one.path, re.IGNORECASE)],
    ):
        if len(match) == 1:
            return match[0]
        if match:
            raise UnknownName(
                f"{printable(repo)} has {len(match)} files of {short(asked)}; name one as 'hf://{printable(repo)}/FILE': {listed(match, names=True)}.",
                tuple(one.path for one in match[:3]),
            )
    near = UnknownName.among("quantization", asked, [one.quant or one.path for one in models]).nearest
    raise UnknownName(f"{printable(repo)} has no {short(asked)}; it has {listed(models)}.", near)


def listed(found: Iterable[Variant], *, names: bool = False) -> str:
    """Variants with their sizes, in one line."""
    every = list(found)
    shown = [
        printable((one.path if names else one.quant or one.path), 80)
        + (f" {show_gb(one.bytes)}" if one.bytes is not None else "")
        for one in every[:_MOST_LISTED]
    ]
    return ", ".join(shown) + (f" and {len(every) - _MOST_LISTED} more" if len(every) > _MOST_LISTED else "")


def projector(found: Iterable[Variant], model: Variant) -> Variant | None:
    """The mmproj that llama.cpp loads beside `model`: in its directory or above, the nearest first, then the closest quantization."""
    home = PurePosixPath(model.path).parent.parts
    best: tuple[int, int, str] | None = None
    chosen = None
    for one in found:
        above = PurePosixPath(one.path).parent.parts
        if one.kind != "mmproj" or home[: len(above)] != above:
            continue
        key = (-len(above), abs(_bits(one.quant) - _bits(model.quant)), one.path)
        if best is None or key < best:
            best, chosen = key, one
    return chosen


def _bits(quant: str) -> int:
    match = _BITS.search(quant.removeprefix("UD-"))
    return int(match[0]) if match else 0
