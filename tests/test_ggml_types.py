"""File types: every measured model's bytes and types, the sizes of published files, the blocks against the gguf package."""

from __future__ import annotations

import csv
from collections import Counter

import gguf
import pytest
from gguf_files import MEASURED, measured_model, shapes

from fitkit.errors import UnknownName, UnsupportedModel
from fitkit.model import Model, Tensor
from fitkit.rules.llamacpp.ggml_types import (
    BLOCKS,
    FILE_TYPES,
    file_type_bytes,
    name_of,
    tensor_bytes,
    typed,
    weights_bytes,
)

with (MEASURED / "quant_mixes.csv").open(newline="") as file:
    MIXES = list(csv.DictReader(file))


def test_blocks_are_those_of_the_gguf_package() -> None:
    known = {
        kind.name: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items() if kind.name != "Q8_1"
    }  # never in a file
    assert {name: BLOCKS[name] for name in known} == known
    assert set(BLOCKS) - set(known) <= {"Q2_0"}  # newer than the package


@pytest.mark.parametrize("name", shapes())
def test_every_file_type_of_every_measured_model_is_exact(name: str, tmp_path) -> None:
    model = measured_model(name, tmp_path)
    rows = [row for row in MIXES if row["model"] == name]
    assert len({row["quant"].removesuffix("+imatrix") for row in rows}) == 30
    for row in rows:
        tensors = typed(model, row["quant"])
        assert tensor_bytes(tensors) == int(row["tensor_bytes"]), row["quant"]
        assert tensor_bytes(tensors, padded=32) == int(row["padded_bytes"]), row["quant"]
        counted: Counter[str] = Counter()
        for tensor in tensors:
            counted[tensor.dtype] += tensor.copies
        assert counted == {kind: int(n) for kind, n in (entry.split(":") for entry in row["types"].split())}, row[
            "quant"
        ]


@pytest.mark.parametrize(
    ("name", "quant", "header", "file_bytes", "within"),
    [
        ("llama-3.1-8b", "Q4_K_M", 7_840_928, 4_920_739_232, 0),
        ("llama-3.1-8b", "Q8_0", 7_840_928, 8.5408e9, 1e-4),
        ("llama-3.3-70b", "Q4_K_M", 7_840_928, 42.520e9, 1e-4),
        ("llama-3.3-70b", "Q5_K_M", 7_840_928, 49.950e9, 1e-4),
        ("llama-3.3-70b", "Q8_0", 7_840_928, 74.975e9, 1e-4),
        ("gpt-oss-20b", "MXFP4_MOE", 0, 12.097e9, 1e-4),
        ("deepseek-v3-671b", "Q4_K_M", 0, 404.49e9, 1e-4),
    ],
)
def test_sizes_of_known_files(name: str, quant: str, header: int, file_bytes: float, within: float, tmp_path) -> None:
    size = weights_bytes(measured_model(name, tmp_path), quant) + header
    assert size == file_bytes if not within else size == pytest.approx(file_bytes, rel=within)


def test_a_file_keeps_its_own_types_for_its_own_file_type(tmp_path) -> None:
    model = measured_model("llama-3.2-1b", tmp_path)
    odd = model.with_(quant="Q4_K_M", tensors=tuple(_as(tensor, "Q5_K") for tensor in model.tensors))
    assert weights_bytes(odd, "Q4_K_M") == tensor_bytes(odd.tensors)
    assert weights_bytes(odd, "Q8_0") == weights_bytes(model, "Q8_0")


def _as(tensor: Tensor, kind: str) -> Tensor:
    return Tensor(
        role=tensor.role,
        shape=tensor.shape,
        layers=tensor.layers,
        dtype=kind if len(tensor.shape) > 1 else tensor.dtype,
    )


def test_more_bits_never_make_a_smaller_file(tmp_path) -> None:
    model = measured_model("llama-3.1-8b", tmp_path)
    order = [
        "IQ1_S",
        "IQ1_M",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ2_S",
        "IQ2_M",
        "IQ3_XXS",
        "IQ3_XS",
        "IQ3_S",
        "Q3_K_M",
        "Q3_K_L",
        "Q4_K_S",
        "Q4_K_M",
    ]
    order += ["Q5_K_S", "Q5_K_M", "Q6_K", "Q8_0", "F16", "F32"]
    sizes = [weights_bytes(model, quant) for quant in order]
    assert sizes == sorted(sizes)


def test_padding_only_adds(tmp_path) -> None:
    model = measured_model("gpt2-xl", tmp_path)
    for quant in FILE_TYPES:
        if quant in ("NVFP4", "Q1_0", "Q2_0"):
            continue  # no row of 1600 or fallback for it
        plain, padded = file_type_bytes(model, quant)
        assert plain <= padded < plain + 32 * sum(tensor.copies for tensor in model.tensors)


def test_names_of_roles() -> None:
    assert [name_of(role) for role in ("ffn_up_exps", "attn_q.bias", "ssm_d", "nextn.eh_proj", "ffn_down_exps.scale")] == [
        "ffn_up_exps.weight", "attn_q.bias", "ssm_d", "nextn.eh_proj.weight", "ffn_down_exps.scale",
    ]  # fmt: skip


def test_an_unknown_file_type_is_refused_with_the_nearest(tmp_path) -> None:
    model = measured_model("llama-3.2-1b", tmp_path)
    with pytest.raises(UnknownName, match="Q4_K_M"):
        weights_bytes(model, "Q4_K_XL")


def test_rows_that_no_block_divides_fall_back_or_are_refused() -> None:
    model = Model(
        name="odd", family="llama", gguf_architecture="llama", basis="estimate", layers=(), hidden_size=8, vocab_size=8, context=8, params=1,
        active_params=1, tensors=(Tensor(role="ffn_up", shape=(33, 8), layers=(0,), dtype="F16"),), extra=(("block_count", 1),),
    )  # fmt: skip
    assert typed(model, "Q4_K_M")[0].dtype == "F16"
    with pytest.raises(UnsupportedModel, match="rows of 33"):
        typed(model, "Q8_0")
