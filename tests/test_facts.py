"""Every row of every table of facts: sources, sizes, names, and the shapes of the catalog's models."""

from __future__ import annotations

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitkit import facts
from fitkit.errors import BadInput, UnknownName
from fitkit.facts import fold, shape

NAMED = ("gpus", "machines", "quants", "kv_dtypes", "models")


@pytest.mark.parametrize("table", [*facts.NEEDED, "tokenizers", "nicknames"])
def test_every_row_has_source_and_date(table: str) -> None:
    assert facts.rows(table)
    for row in facts.rows(table):
        assert len(row["source"]) > 5, row
        assert "2025-01-01" <= row["checked"] <= "2027-12-31", row


@pytest.mark.parametrize("table", NAMED)
def test_a_name_means_one_row(table: str) -> None:
    owner: dict[str, str] = {}
    for row in facts.rows(table):
        for name in facts.aliases(row):
            assert fold(name), row
            assert owner.setdefault(fold(name), row["name"]) == row["name"], name


@pytest.mark.parametrize("table", NAMED)
def test_every_name_and_alias_finds_its_row(table: str) -> None:
    for row in facts.rows(table):
        for name in facts.aliases(row):
            assert facts.get(table, f" {name.upper()} ", "thing")["name"] == row["name"]


def test_a_miss_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Q4_K_M") as caught:
        facts.get("quants", "Q4_K_N", "quantization")
    assert "Q4_K_M" in caught.value.nearest


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(UnknownName, match="gpus"):
        facts.rows("gpu")


def test_a_decimal_point_tells_sizes_apart() -> None:
    assert fold("RTX-4090") == fold("rtx 4090")
    assert fold("model-1.5B") != fold("model-15B")


# ---- hardware -----------------------------------------------------------------------------------------------------------


def test_gpus_are_plausible() -> None:
    assert len(facts.rows("gpus")) >= 120
    for row in facts.rows("gpus"):
        nominal = float(row["nominal_gib"])
        driver = float(row["driver_mib"] or 0) / 1024
        torch = float(row["torch_gib"] or 0)
        assert 4 <= nominal <= 512, row
        assert not driver or 0.92 * nominal <= driver <= 1.03 * nominal, row
        assert not torch or 0.45 * nominal <= torch <= (driver or nominal * 1.01) + 0.01, row
        assert 50 <= float(row["bandwidth_gb_s"]) <= 30_000, row
        assert row["backend"] in ("cuda", "rocm", "metal", "xpu", "other"), row
        assert not row["compute_arch"] or row["backend"] != "cuda" or row["compute_arch"].startswith("sm_"), row


def test_machines_hold_known_gpus() -> None:
    assert len(facts.rows("machines")) >= 30
    for row in facts.rows("machines"):
        assert facts.find("gpus", row["gpu"]), row
        assert 1 <= int(row["count"]) <= 72, row


def test_macos_limits_are_fractions_that_grow() -> None:
    limits: dict[float, dict[str, float]] = {}
    for row in facts.rows("apple_limits"):
        limits.setdefault(float(row["memory_gib"]), {})[row["macos"]] = float(row["limit_gib"])
    for memory, by_version in limits.items():
        assert 0.66 * memory <= by_version["any"] <= by_version.get("26", by_version["any"]) <= 0.91 * memory


# ---- quantizations ------------------------------------------------------------------------------------------------------


def test_block_sizes_are_the_formats_own() -> None:
    ours = [(row, row["name"]) for row in facts.rows("quants") if row["block_size"]]
    ours += [(row, row["name"].upper()) for row in facts.rows("kv_dtypes") if "llama.cpp" in row["engines"]]
    assert len(ours) >= 25
    for row, name in ours:
        size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        assert (int(row["block_size"]), int(row["block_bytes"])) == size, name


@pytest.mark.parametrize(
    ("quant", "bits"),
    [("BF16", 16), ("FP8", 8), ("Q8_0", 8.5), ("Q6_K", 6.56), ("Q5_K_M", 5.7), ("Q4_K_M", 4.85), ("Q3_K_M", 3.91), ("GPTQ", 4.25), ("AWQ", 4.25), ("MXFP4", 4.25)],
)  # fmt: skip
def test_nominal_bits_are_the_budget_calculators(quant: str, bits: float) -> None:
    assert float(facts.get("quants", quant, "quantization")["bits"]) == bits


@pytest.mark.parametrize(("quant", "size"), [("BF16", 2), ("FP8", 1), ("Q8_0", 1.06), ("Q4_K_M", 0.61)])
def test_bytes_a_parameter_are_the_gateways(quant: str, size: float) -> None:
    assert float(facts.get("quants", quant, "quantization")["bytes_per_param"]) == size


def test_fewer_bits_never_diverge_less_among_k_quants() -> None:
    ladder = [
        facts.get("quants", name, "quantization")
        for name in ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
    ]
    losses = [float(row["kld"]) for row in ladder]
    assert losses == sorted(losses)


def test_every_quant_says_when() -> None:
    assert all(row["when"] and row["bits"] and row["engines"] for row in facts.rows("quants"))


# ---- models -------------------------------------------------------------------------------------------------------------


def test_the_catalog_is_large_and_by_popularity() -> None:
    downloads = [int(row["downloads"] or 0) for row in facts.rows("models")]
    assert len(downloads) >= 300
    assert downloads == sorted(downloads, reverse=True)


@pytest.mark.parametrize("name", [row["name"] for row in facts.rows("models")])
def test_a_row_gives_its_model(name: str) -> None:
    from fitkit.sources.catalog import catalog_model, layer_kinds

    row = facts.get("models", name, "model")
    model = catalog_model(name)
    assert model is not None
    assert (model.params, model.active_params, len(model.layers)) == tuple(
        int(row[key]) for key in ("params", "active_params", "layers")
    )
    assert (model.context, model.vocab_size, model.quant) == (int(row["context"]), int(row["vocab"]), row["quant"])
    assert layer_kinds(model.layers) == row["layer_kinds"]
    assert 0 < model.active_params <= model.params
    assert row["published_params"] in ("", row["params"]) or row["why"], "a total that differs needs its reason"


def test_totals_are_the_published_ones() -> None:
    told = [row for row in facts.rows("models") if row["published_params"]]
    guessed = (
        "not explained",
        "than its config describes",
        "listed",
    )  # the difference is not accounted for to the parameter
    doubtful = [row["name"] for row in told if any(words in row["why"] for words in guessed)]
    assert len(doubtful) <= 0.05 * len(told), doubtful
    assert not [row["name"] for row in told if "not explained" in row["why"]]
    equal = [row for row in told if row["published_params"] == row["params"]]
    assert len(equal) >= 0.75 * len([row for row in told if not row["quant"]])


def test_header_sizes_say_how_they_are_known() -> None:
    for row in facts.rows("models"):
        assert row["header_basis"] in ("file", "estimate")
        assert 200_000 <= int(row["gguf_header_bytes"]) <= 20_000_000, row["name"]


FILES = facts.rows("files")


@pytest.mark.parametrize("row", FILES, ids=[f"{row['model']} {row['quant']} {row['bytes']}" for row in FILES])
def test_known_files(row: facts.Row) -> None:
    from fitkit.rules.llamacpp.ggml_types import IMATRIX, weights_bytes
    from fitkit.sources.config import model_from_config

    known = facts.get("models", row["model"], "model")
    assert row["measure"] in ("file", "tensors")
    assert 2 <= int(row["bytes"]) * 8 / int(known["params"]) <= 17
    if row["mix"] not in ("llama.cpp", "llama.cpp+imatrix"):
        return  # another mix, which the row names
    config = shape.decode(known["shape"])
    if row["vocab"]:  # a fine-tune with tokens of its own
        config["vocab_size"] = int(row["vocab"])
    header = int(known["gguf_header_bytes"]) if row["measure"] == "file" else 0
    tensors = weights_bytes(model_from_config(config), row["quant"] + (IMATRIX if "imatrix" in row["mix"] else ""))
    assert int(row["bytes"]) - header == pytest.approx(tensors, abs=0.1 * header + 32)


def test_most_files_are_of_llama_cpps_own_mixes() -> None:
    assert sum(row["mix"].startswith("llama.cpp") for row in FILES) >= 0.6 * len(FILES)


# ---- the notation of shapes ---------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | WORDS | st.none(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(WORDS, VALUES, max_size=6))
def test_a_shape_reads_back(mapping: dict[str, object]) -> None:
    assert shape.decode(shape.encode(mapping)) == mapping


@given(st.lists(st.sampled_from("ab"), max_size=60))
def test_runs_lose_nothing(items: list[str]) -> None:
    assert shape.decode(f"x=[{shape.runs(items)}]") == {"x": items}


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "a=[1",
        "a={b=1",
        "a=[1*9999999]",
        "a=[(1,2)*x]",
        "a=[[[[[[[[[[[[[[1]]]]]]]]]]]]]]",
        "=1",
        'a="x',
        "a=1 }",
    ],
)
def test_a_broken_shape_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        shape.decode(text)
