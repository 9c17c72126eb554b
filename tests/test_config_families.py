"""Text models from their config: parameter totals, caches and states against published totals and both engines' own figures."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fitkit.facts import shape
from fitkit.model import Cache, Model
from fitkit.sources.config import model_from_config, model_from_view
from fitkit.sources.config.view import Config

MEASURED = Path(__file__).parent / "measured"


@cache
def table(name: str) -> tuple[dict[str, str], ...]:
    with (MEASURED / f"{name}.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def model(row: dict[str, str]) -> Model:
    return model_from_config(shape.decode(row["shape"]))


def named(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", table(name), ids=lambda row: row["model"])


def sum_of(model: Model, part: str = "", role: str = "") -> int:
    return sum(t.elements * t.copies for t in model.tensors if t.part == part and t.role.startswith(role))


@named("config_params")
def test_parameters_are_the_published_total(row: dict[str, str]) -> None:
    """To the last parameter; where the published total counts something else, that something is computed and named."""
    m = model(row)
    table_ = m.hidden_size * m.vocab_size
    explained = {
        "": 0,
        "mtp": sum_of(m, "mtp"),
        "mtp, embedding and head shared": sum_of(m, "mtp") - 2 * table_ * int(m.get("mtp_layers", 0)),
        "mtp and hash table": sum_of(m, "mtp") + sum_of(m, "", "ffn_gate_tid2eid"),
        "tied head stored twice": table_ if m.tied_embeddings else 0,
        "router bias not in the total": -sum_of(m, "", "exp_probs_b"),
        "buffers": int(row["difference"]),
    }
    assert m.params + explained[row["why"]] == int(row["published"])
    assert row["why"] != "buffers" or 0 < int(row["difference"]) <= 40_000
    assert row["gguf_architecture"] in ("", m.gguf_architecture)


def vllm_word(cache: Cache) -> str:
    if cache.kind == "state":
        return f"state:{cache.conv_elements}:{cache.ssm_elements}"
    return f"{cache.kind}:{cache.kv_heads or 1}:{cache.k_dim}:{cache.v_dim}:{cache.window}"


@named("config_caches")
def test_caches_are_those_vllm_plans(row: dict[str, str]) -> None:
    """Kinds, heads, widths, windows and state sizes of every layer."""
    want: Counter[str] = Counter()
    for word in row["caches"].split():
        spec, _, layers = word.rpartition("x")
        want[":".join(spec.split(":")[:3]) if spec.startswith("state") else spec] += int(layers)
    assert Counter(vllm_word(c) for c in model(row).caches()) == want


@named("config_caches")
def test_states_have_the_dtype_vllm_gives_them(row: dict[str, str]) -> None:
    dtypes = {word.rpartition("x")[0].split(":")[3] for word in row["caches"].split() if word.startswith("state")}
    said = {c.dtype or "bfloat16" for c in model(row).caches() if c.kind == "state" and c.ssm_elements}
    assert said == dtypes


@pytest.mark.parametrize("row", [r for r in table("config_caches") if r["weight_bytes"]], ids=lambda row: row["model"])
def test_bytes_are_those_of_vllms_modules(row: dict[str, str]) -> None:
    """Byte for byte; vLLM pads the vocabulary to 64 and keeps some routers in 32 bits."""
    m = model(row)
    total = sum(t.elements * t.copies * (4 if t.dtype == "F32" else 2) for t in m.tensors if t.part != "mtp")
    tables = 1 if m.tied_embeddings else 2
    total += tables * (-m.vocab_size % 64) * m.hidden_size * 2
    if m.get("router_dtype") == "F32":
        total += 2 * sum_of(m, "", "ffn_gate_inp") - 2 * sum_of(m, "", "ffn_gate_inp_shexp")
    assert total == int(row["weight_bytes"])


@pytest.mark.parametrize("row", [r for r in table("config_caches") if r["buffer_bytes"]], ids=lambda row: row["model"])
def test_rotary_tables_are_nearly_all_of_vllms_buffers(row: dict[str, str]) -> None:
    """What is left are scales of a few bytes a layer, and a tower's or a state's own buffers."""
    tables = model(row).get("rope_tables")
    left = int(row["buffer_bytes"]) - sum(rows * width * (4 if dtype == "F32" else 2) for rows, width, dtype in tables)
    assert 0 <= left < 2_000_000


@named("config_llamacpp")
def test_cells_and_states_are_those_llama_cpp_allocates(row: dict[str, str]) -> None:
    """Layers and elements a cell of K and V, and the states of one slot in 32 bits."""
    m = model(row)
    windowed = "window" in row["cells"]  # of some architectures llama.cpp keeps the whole context in every layer
    have: Counter[tuple[str, int, int]] = Counter()
    for c in m.caches():
        if c.kind != "state":
            heads = c.kv_heads or 1
            kind = "window" if windowed and c.kind in ("sliding", "chunked") else "full"
            have[kind, heads * c.k_dim, heads * c.v_dim] += 1
    want: Counter[tuple[str, int, int]] = Counter()
    for word in row["cells"].split():
        kind, layers, k, v = word.split(":")
        want[kind, int(k), int(v)] += int(layers)
    assert have == want
    states = sum(c.conv_elements + c.ssm_elements for c in m.caches() if c.kind == "state")
    assert states * 4 == int(row["state_bytes"])


@pytest.mark.parametrize("name", ["config_params", "config_caches", "config_llamacpp"])
def test_what_was_read_is_enough_to_build_the_same_model(name: str) -> None:
    """The catalog is made from the record alone."""
    noise = {"transformers_version": "5.0", "bos_token_id": 1, "initializer_range": 0.02, "use_cache": True}
    for row in table(name):
        said = Config({**shape.decode(row["shape"]), **noise})
        first = model_from_view(said)
        record = said.recorded()
        assert not set(noise) & set(record)
        assert model_from_config(record) == first, row["model"]


# Published active parameters; ours count the head but not the input embedding, publishers differ by up to that table.
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("openai/gpt-oss-20b", 3.61e9), ("openai/gpt-oss-120b", 5.13e9), ("deepseek-ai/DeepSeek-V3", 37e9),
        ("Qwen/Qwen3-30B-A3B", 3.3e9), ("mistralai/Mixtral-8x7B-v0.1", 12.9e9), ("Qwen/Qwen3-235B-A22B", 22e9),
    ],
)  # fmt: skip
def test_active_parameters(name: str, published: float) -> None:
    from fitkit.facts import find

    row = find("models", name)
    if row is None:
        pytest.skip("not in the catalog")
    m = model_from_config(shape.decode(row["shape"]))
    assert m.active_params <= published * 1.03
    assert m.active_params + m.hidden_size * m.vocab_size >= published * 0.99


def test_deepseek_v4_keeps_windows_compressed_states_and_indexers() -> None:
    """Of the published Flash: 43 windowed latents, 41 compressed, 21 of ratio 4 with an indexer (vLLM 0.33: 22 + 21, 62, 42 and 20 in its groups)."""
    row = next(row for row in table("config_params") if row["family"] == "deepseek_v4")
    kept = Counter((c.kind, c.ratio) for c in model(row).caches())
    assert kept == {("sliding", 1): 43, ("compressed", 4): 21, ("compressed", 128): 20, ("indexer", 4): 21}


def test_an_inner_config_may_leave_out_its_classs_defaults() -> None:
    """What transformers 5.24 assumes for Gemma 3's text part: 26 layers of 2304, every sixth full, windows of 4096."""
    tower = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128, "image_size": 28, "patch_size": 14}  # fmt: skip
    m = model_from_config(
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": tower}
    )
    assert (len(m.layers), m.hidden_size, m.vocab_size, m.heads, m.kv_heads) == (26, 2304, 262208, 8, 4)
    assert Counter((c.kind, c.window) for c in m.caches()) == {("sliding", 4096): 22, ("full", 0): 4}


@pytest.mark.parametrize(
    ("said", "kinds"),
    [
        ({"use_sliding_window": False, "sliding_window": 512, "max_window_layers": 2}, {"full": 4}),
        ({"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 1}, {"full": 1, "sliding": 3}),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, {"full": 4}),
    ],
)
def test_qwens_windows_only_count_where_they_are_used(said: dict[str, object], kinds: dict[str, int]) -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 999, "intermediate_size": 512}  # fmt: skip
    m = model_from_config({"model_type": "qwen2", **sizes, **said})
    assert Counter(c.kind for c in m.caches()) == kinds


@pytest.mark.parametrize(
    ("said", "window"), [({}, 4096), ({"sliding_window": None}, 0), ({"sliding_window": 128}, 128)]
)
def test_mistrals_window_is_its_classs_unless_null(said: dict[str, object], window: int) -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 999, "intermediate_size": 512}  # fmt: skip
    m = model_from_config({"model_type": "mistral", **sizes, **said})
    assert {c.window for c in m.caches()} == {window}


def test_rwkv_7_has_its_published_parameters() -> None:
    """RWKV-7 World 2.9B: 2,947,735,040; llama.cpp's file adds an unused value mix to the first layer."""
    row = next(row for row in table("config_llamacpp") if row["model"] == "rwkv7-2.9b")
    assert model(row).params == 2_947_735_040


def test_every_row_of_defaults_belongs_to_a_family() -> None:
    """A row no function reads would never be noticed to be wrong."""
    from fitkit.facts import rows
    from fitkit.sources.config import FAMILIES, _load_families

    _load_families()
    for row in rows("config_defaults"):
        assert row["name"] in FAMILIES
        assert row["checked"] > "2026"
