"""A GGUF file → Model, its bytes exact. Split files are read whole; projectors and adapters are told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fitkit.errors import BadInput, UnsupportedModel, printable, short
from fitkit.gguf_layers import Hparams, caches_of, widths_of
from fitkit.model import Layer, Model, Tensor
from fitkit.sources.gguf_header import Bytes, FileBytes, Header, TensorInfo, read_header
from fitkit.sources.places import own

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf$", re.DOTALL)
_BLOCK = re.compile(r"^(?P<before>(?:[\w.]*?\.)?)blk\.(?P<block>\d+)\.(?P<rest>.+)$", re.DOTALL)
_MOST_PARTS = 512
_MOST_KEPT = 512  # entries of a list that goes into Model.extra
# Rotary tables: in the file, read by the engine, no parameters of the model.
_PARTS = {"v": "vision", "a": "audio"}
BUFFERS = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def model_from_gguf(path: Path) -> Model:
    """The model of a local .gguf file, all its parts where it is split.

    A projector (mmproj) comes back without layers, for LlamaCpp(mmproj=...). Raises BadInput for a file that is broken or whose
    other parts are missing, UnsupportedModel for an adapter or an architecture no function knows.
    """
    names = part_names(path.name)
    headers = []
    for name in names:
        part = path.with_name(name)
        if not part.is_file():
            raise BadInput(
                f"{printable(path.name)} is one of {len(names)} parts, and {printable(name)} is not beside it."
            )
        with FileBytes(part if name == path.name else own(part, path.parent)) as source:
            headers.append(read_header(source))
    return model_from_headers(headers, source=str(path))


def model_from_bytes(sources: Sequence[Bytes], *, source: str = "", revision: str = "") -> Model:
    """The model whose files (all parts, in order) are read through `sources`, by range where they are far away."""
    return model_from_headers([read_header(one) for one in sources], source=source, revision=revision)


def part_names(name: str) -> list[str]:
    """Every part of a split file's name; the name alone where it is not split.

    >>> part_names("m-Q8_0-00002-of-00002.gguf")
    ['m-Q8_0-00001-of-00002.gguf', 'm-Q8_0-00002-of-00002.gguf']
    """
    match = _SPLIT.match(name)
    if not match:
        return [name]
    count = int(match["count"])
    if not 1 <= int(match["part"]) <= count <= _MOST_PARTS:
        raise BadInput(f"{short(name)} is part {int(match['part'])} of {count}, which cannot be.")
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def model_from_headers(headers: Sequence[Header], *, source: str = "", revision: str = "") -> Model:
    """The model of one file's header, or of all parts' headers in order."""
    infos = _joined(headers)
    first = headers[0]
    if kind_of(first) == "mmproj":
        return _projector(headers, source, revision)
    arch = _text(first, "general.architecture")
    _refuse_companions(first, infos)
    hparams = Hparams(
        arch=arch,
        place=first.place,
        values={
            key.removeprefix(arch + "."): value for key, value in first.metadata.items() if key.startswith(arch + ".")
        },
    )
    caches = caches_of(hparams)
    tensors = _grouped(infos, hparams)
    widths = widths_of(tensors, hparams)
    layers = tuple(Layer(caches=tuple(kept), **width) for kept, width in zip(caches, widths, strict=True))
    params, active = _counted(tensors, layers)
    table = next((tensor.shape for tensor in tensors if tensor.role == "token_embd"), (0, 0))
    return Model(
        name=_name(first),
        family=arch,
        basis="estimate",
        layers=layers,
        tensors=tensors,
        hidden_size=hparams.whole("embedding_length"),
        vocab_size=table[-1] or first.vocab or hparams.whole("vocab_size", 0),
        context=hparams.whole("context_length"),
        params=params,
        active_params=active,
        tied_embeddings=bool(table[0]) and not any(tensor.role == "output" for tensor in tensors),
        dtype=_plain_dtype(tensors),
        quant=_file_type(first, tensors),
        gguf_architecture=arch,
        file_bytes=sum(header.file_bytes for header in headers),
        header_bytes=sum(header.data_offset for header in headers),
        source=source or first.place,
        revision=revision,
        extra=_extra(hparams.values),
    )


def kind_of(header: Header) -> str:
    """What a GGUF is: model, mmproj, adapter, imatrix, vocab, ..."""
    arch, said = header.metadata.get("general.architecture"), header.metadata.get("general.type")
    if arch == "clip" or said == "mmproj":
        return "mmproj"
    return str(said) if isinstance(said, str) and said else "model"


def _projector(headers: Sequence[Header], source: str, revision: str) -> Model:
    """An mmproj file: no layers, tensors by part, their bytes as `projector_bytes`."""
    first, infos = headers[0], _joined(headers)
    groups: dict[tuple[str, tuple[int, ...], str], int] = {}
    for info in infos:
        key = (role_of(info.name)[0], info.shape, info.type)
        groups[key] = groups.get(key, 0) + 1
    tensors = tuple(
        Tensor(role=role, shape=shape, count=count, dtype=kind, part=_PARTS.get(role.partition(".")[0], "projector"))
        for (role, shape, kind), count in groups.items()
    )
    params = sum(tensor.elements * tensor.copies for tensor in tensors)
    return Model(
        name=_name(first), family="clip", basis="estimate", layers=(), tensors=tensors,
        hidden_size=0, vocab_size=0, context=0, params=params, active_params=params, gguf_architecture="clip",
        quant=_file_type(first, tensors), file_bytes=sum(header.file_bytes for header in headers),
        header_bytes=sum(header.data_offset for header in headers), projector_bytes=sum(info.size_bytes for info in infos),
        source=source or first.place, revision=revision,
    )  # fmt: skip


# ---- steps ------------------------------------------------------------------------------------------------------------------


def _joined(headers: Sequence[Header]) -> list[TensorInfo]:
    """All parts' tensors; the parts must belong together."""
    if len(headers) == 1 and headers[0].metadata.get("split.count", 0) in (0, 1):
        return list(headers[0].tensors)
    place = headers[0].place
    infos: dict[str, TensorInfo] = {}
    for number, header in enumerate(headers):
        if header.metadata.get("split.count") != len(headers) or header.metadata.get("split.no") != number:
            raise BadInput(
                f"{header.place} says it is part {short(header.metadata.get('split.no'))} of {short(header.metadata.get('split.count'))} "
                f"(counted from 0), where part {number} of {len(headers)} was expected."
            )
        for info in header.tensors:
            if info.name in infos:
                raise BadInput(f"{header.place}: tensor {short(info.name)} is in another part too.")
            infos[info.name] = info
    said = headers[0].metadata.get("split.tensors.count", len(infos))
    if said != len(infos):
        raise BadInput(f"{place} says its parts hold {short(said)} tensors, and they hold {len(infos)}.")
    return list(infos.values())


def _name(header: Header) -> str:
    """What the file calls its model, else the file's own name, fit for a line."""
    said = header.metadata.get("general.name")
    return printable(said if isinstance(said, str) and said.strip() else Path(header.place).stem)


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(key)
    if not isinstance(value, str) or not value:
        raise BadInput(f"{header.place} has no {key}, so it is no model that llama.cpp loads.")
    return value


def _refuse_companions(header: Header, infos: Sequence[TensorInfo]) -> None:
    kind, size = kind_of(header), sum(info.size_bytes for info in infos)
    if kind == "adapter":
        raise UnsupportedModel(
            f"{header.place} is an adapter, no model of its own; its tensors take {size} bytes beside its model: LlamaCpp(lora_bytes={size})."
        )
    if kind != "model":
        raise UnsupportedModel(f"{header.place} is of general.type {short(kind)}, no model of its own.")


def role_of(name: str) -> tuple[str, int]:
    """A tensor's role and block number (-1: model-wide).

    >>> role_of("blk.3.attn_q.bias"), role_of("output.weight")
    (('attn_q.bias', 3), ('output', -1))
    """
    match = _BLOCK.match(name)
    block, rest = (int(match["block"]), match["before"] + match["rest"]) if match else (-1, name)
    return rest.removesuffix(".weight"), block


def _grouped(infos: Sequence[TensorInfo], h: Hparams) -> tuple[Tensor, ...]:
    """Equal tensors of one role together, in the order they first come."""
    groups: dict[tuple[str, tuple[int, ...], str, bool, bool], list[int]] = {}
    blocks, trunk = h.blocks, h.trunk
    for info in infos:
        role, block = role_of(info.name)
        if block >= blocks:
            raise BadInput(f"{h.place}: tensor {short(info.name)} belongs to block {block}, and there are {blocks}.")
        groups.setdefault((role, info.shape, info.type, block >= trunk, block >= 0), []).append(block)
    return tuple(
        Tensor(role=role, shape=shape, layers=tuple(sorted(numbers)) if in_block else (), count=1 if in_block else len(numbers),
               dtype=kind, part="mtp" if ahead else "")
        for (role, shape, kind, ahead, in_block), numbers in groups.items()
    )  # fmt: skip


def _counted(tensors: Sequence[Tensor], layers: Sequence[Layer]) -> tuple[int, int]:
    """Total and active parameters, without NextN blocks and rotary tables."""
    total = active = 0
    for tensor in tensors:
        if tensor.part or tensor.role in BUFFERS:
            continue
        total += tensor.elements * tensor.copies
        for block in tensor.layers or (-1,):
            experts, used = (layers[block].experts, layers[block].experts_used) if block >= 0 else (0, 0)
            routed = "_exps" in tensor.role and experts
            active += tensor.elements * tensor.count * used // experts if routed else tensor.elements * tensor.count
    return total, active


def _plain_dtype(tensors: Sequence[Tensor]) -> str:
    """The 16-bit type of what is not quantized; BF16 where nothing says."""
    kinds = {tensor.dtype for tensor in tensors}
    return "F16" if "F16" in kinds and "BF16" not in kinds else "BF16"


def _file_type(header: Header, tensors: Sequence[Tensor]) -> str:
    """The file type's name; where the file has none or a foreign one, the type most of its bytes have."""
    from gguf.constants import LlamaFileType

    number = header.metadata.get("general.file_type")
    for known in LlamaFileType:
        if known.value == number and known.name != "GUESSED":
            return str(known.name).removeprefix("MOSTLY_").removeprefix("ALL_")
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.elements * tensor.copies
    return max(by_type, key=lambda kind: by_type[kind], default="")


def _extra(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Numbers, flags, short texts and short lists of numbers, sorted by key."""
    return tuple(sorted((key, value) for key, value in values.items() if _is_short(value)))


def _is_short(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MOST_KEPT
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) < 64)
