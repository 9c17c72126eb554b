"""What the settings objects take and give: any model `load` knows, one row for each line of llama.cpp's log."""

from __future__ import annotations

import pytest

import fitkit as fk
from fitkit.errors import UnknownName


def test_models_are_named_or_given() -> None:
    settings = fk.LlamaCpp(n_ctx=8192)
    assert settings.buffers("llama-3.1-8b").equals(settings.buffers(fk.load("llama-3.1-8b"), "q4_k_m"))
    assert fk.VLLM().startup("llama-3.1-8b", gpu="H100") == fk.VLLM().startup(fk.load("llama-3.1-8b"), gpu="H100")
    with pytest.raises(UnknownName, match=r"gpt-oss-120b"):
        settings.buffers("gpt-osss-120b")
    with pytest.raises(UnknownName, match=r"Q4_K_M"):
        settings.buffers("llama-3.1-8b", "Q4_K_X")


def test_a_row_is_a_line_of_the_log() -> None:
    table = fk.LlamaCpp(n_ctx=8192, n_seq_max=1).buffers(
        "gemma-3-27b-it"
    )  # its tied head is loaded twice, in one buffer
    lines = table[table.log_name != ""]
    assert not lines.duplicated(["device", "log_name"]).any()
    assert (table.low <= table.bytes).all()
    assert (table.bytes <= table.high).all()


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b"])
def test_the_default_type_is_the_tables(name: str) -> None:
    buffers = fk.LlamaCpp(n_ctx=8192).buffers(name)
    assert buffers.loc[buffers.kind == "model", "bytes"].sum() == fk.demand(name).weights_bytes.item()


def test_more_slots_than_the_engine_has_are_refused() -> None:
    asked = {"machines": "Mac Studio M3 Ultra 512GB", "quants": "Q4_K_M", "contexts": 2048}
    table = fk.fit("qwen3-next-80b-a3b", parallel=[256, 257, 2000], **asked)  # a hybrid: slots shape its graph
    assert table.fits.tolist() == [True, False, False]
    assert table.max_parallel.tolist()[0] == 256
    assert "n_seq_max must be <= 256" in table.reason[1]
    with pytest.raises(fk.BadInput, match=r"n_seq_max must be <= 256"):
        fk.demand("llama-3.1-8b", "Q4_K_M", contexts=2048, parallel=257)
