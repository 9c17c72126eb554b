"""Launch lines give exactly the plan, and are read back as settings."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

import fitkit as fk


def line(*arguments: Any, **keywords: Any) -> str:
    """The launch line of the only row."""
    return fk.command(fk.fit(*arguments, **keywords).iloc[0])


def test_llama_server() -> None:
    found = line("llama-3.1-8b", "2x RTX 4090", "Q4_K_M", 16384, 3, "q8_0", rules="library")
    words = shlex.split(found)
    assert words[0] == "llama-server"
    assert words[words.index("-c") + 1] == str(3 * 16384)
    assert words[words.index("-np") + 1] == "3"
    assert "--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on" in found
    assert "--fit off" in found


def test_vllm_serve() -> None:
    found = line("qwen3-235b-a22b", "8x H100", "FP8", 32768, engine="vllm", rules="shard", kv_dtypes="fp8", gpus=8)
    assert found.startswith("vllm serve Qwen/Qwen3-235B-A22B-FP8 --max-model-len 32768 --tensor-parallel-size 8")
    assert "--kv-cache-dtype fp8" in found
    assert "--enable-expert-parallel" in found


def test_sglang() -> None:
    found = line("llama-3.1-405b", "8x H100", "BF16", engine="sglang", rules=fk.Shard(max_nodes=2))
    assert "sglang.launch_server" in found
    assert "--tp-size 8 --pp-size 2 --nnodes 2" in found


@pytest.mark.parametrize("name", ["a b", "x; rm -rf ~", "$(touch y)", "`id`", "'", "--help"])
def test_names_are_quoted(name: str) -> None:
    model = fk.load("llama-3.1-8b").with_(name=name, source=f"/models/{name}/config.json")
    for engine in ("vllm", "llama.cpp"):
        words = shlex.split(line(model, "RTX 4090", engine=engine, rules="library"))
        assert words[0] in ("vllm", "llama-server")
        assert not {"rm", "$(touch", "`id`"} & set(words[3:])


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        ("llama.cpp", {"quants": "Q8_0", "contexts": 4096, "parallel": 2, "kv_dtypes": "q4_0", "rules": "library"}),
        ("llama.cpp", {"quants": "Q4_K_M", "contexts": 4096, "rules": "library"}),
        ("vllm", {"quants": "BF16", "contexts": 4096, "kv_dtypes": "fp8", "gpus": 2, "rules": "budget"}),
        ("sglang", {"quants": "FP8", "contexts": 4096, "gpus": 4, "rules": "shard"}),
    ],
)
def test_a_line_read_back_asks_the_same(engine: str, asked: dict[str, Any]) -> None:
    row = fk.fit("llama-3.1-8b", "8x H100", engine=engine, **asked).iloc[0]
    read = fk.read_command(fk.command(row))
    assert read.engine == engine
    assert read.context == row.context
    assert read.kv_dtype in (row.kv_dtype, None)
    assert (read.parallel or row.fit_parallel) == row.fit_parallel
    assert (read.gpus or row.fit_gpus) == row.fit_gpus
    assert read.ignored == ()
    if engine == "llama.cpp":
        assert read.quant == row.quant


def test_reading_llama_server() -> None:
    text = """CUDA_VISIBLE_DEVICES=0 /opt/llama.cpp/llama-server -hf ggml-org/gemma-3-27b-it-GGUF:Q4_K_M \\
        -c 32k -np 4 -ctk q8_0 -ctv=q8_0 -fa on -ngl 20 --threads 8 --n-cpu-moe 3 --port 8080"""
    read = fk.read_command(text)
    assert (read.model, read.quant) == ("ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M")
    assert read.options["n_gpu_layers"] == 20
    assert read.options["n_cpu_moe"] == 3
    assert read.options["kv_unified"] is False
    assert read.context == 8000
    assert {"--threads", "--port"} <= set(read.ignored)


def test_reading_vllm() -> None:
    read = fk.read_command(
        "python -m vllm.entrypoints.openai.api_server --model=Qwen/Qwen3-32B --tensor_parallel_size=4 -pp 2 "
        "--max-model-len 32K --enforce-eager --gpu-memory-utilization .95 --served-model-name me"
    )
    assert (read.model, read.gpus, read.context) == ("Qwen/Qwen3-32B", 8, 32768)
    assert read.options["gpu_memory_utilization"] == 0.95
    assert read.options["enforce_eager"] is True
    assert read.ignored == ("--served-model-name",)
    assert read.settings() == fk.VLLM(**read.options)
    assert read.arguments()["engine"].tensor_parallel_size == 4


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("-m llama-3.1-8b-Q4_K_M.gguf", "llama-3.1-8b"),
        ("-m /data/Qwen3-32B-Q6_K.gguf", "qwen3-32b"),
        ("-hf ggml-org/gemma-3-27b-it-GGUF:Q4_K_M", "gemma-3-27b-it"),
        ("-m /data/own-model.gguf", "/data/own-model.gguf"),
    ],
)
def test_files_and_repositories_of_known_models(name: str, model: str) -> None:
    assert fk.read_command(f"llama-server {name} -c 8192 -np 1").arguments()["models"] == model


@pytest.mark.parametrize(
    "text",
    ["", "ls -la", "vllm serve", "llama-server -c 4096", "vllm serve x -tp two", "llama-server -m 'x", "vllm serve x --max-model-len",
     "llama-server -m x.gguf -c 1e9", "x" * 30_000, 3, None],
)  # fmt: skip
def test_what_is_no_line(text: Any) -> None:
    with pytest.raises(fk.BadInput):
        fk.read_command(text)


@pytest.mark.parametrize(
    ("model", "machine", "quant", "served", "flag"),
    [
        (
            "qwen3-235b-a22b",
            "4x H100",
            "FP8",
            "Qwen/Qwen3-235B-A22B-FP8",
            "",
        ),  # the 16-bit one is 470 GB: no card loads a share
        ("llama-3.1-8b", "1x RTX 4090", "FP8", "meta-llama/Llama-3.1-8B-Instruct", "--quantization fp8"),
        (
            "llama-3.3-70b",
            "1x H200",
            "FP8",
            "Llama-3.3-70B-Instruct-FP8",
            "",
        ),  # one H200 cannot load 141 GB to convert them
        ("llama-3.1-8b", "1x RTX 4090", "AWQ", "Llama-3.1-8B-Instruct-AWQ", ""),
    ],
)
def test_what_vllm_is_given(model: str, machine: str, quant: str, served: str, flag: str) -> None:
    found = line(model, machine, quant, 8192, engine="vllm")
    assert found.split()[2] == served
    assert ("--quantization" in found) == bool(flag)
    assert flag in found


def test_lines_as_people_write_them() -> None:
    line = "llama-server -m llama-3.1-8b-Q4_K_M.gguf -fa -ngl all -ts 2,1 -c 8192 -np 1"
    found = fk.read_command(line)
    assert found.settings() == fk.LlamaCpp(
        flash_attn="on", n_gpu_layers=999, tensor_split=(2.0, 1.0), gpus=2, n_ctx=8192, n_seq_max=1, kv_unified=False
    )
    assert (found.context, found.parallel, found.gpus) == (8192, 1, 2)
    assert fk.read_command(f"{line} --flash-attn=off").options["flash_attn"] == "off"
    with pytest.raises(fk.BadInput, match="-np is 0"):
        fk.read_command(f"{line} -np 0")
    with pytest.raises(fk.BadInput, match="tensor_split"):
        fk.read_command(f"{line} -ts nan,1").settings()


@pytest.mark.parametrize(
    ("model", "machine", "engine", "sizes"),
    [
        ("deepseek-v3", "8x H200", fk.VLLM(data_parallel_size=8, enable_expert_parallel=True), (1, 1, 8)),
        ("deepseek-v3", "8x H200", fk.VLLM(tensor_parallel_size=4, data_parallel_size=2, enable_expert_parallel=True), (4, 1, 2)),
        ("llama-3.1-8b", "8x H200", fk.VLLM(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=2), (2, 2, 2)),
        ("llama-3.3-70b", "8x H200", fk.VLLM(tensor_parallel_size=4), (4, 1, 1)),
    ],
)  # fmt: skip
def test_a_lines_ways_take_the_rows_gpus(model: str, machine: str, engine: Any, sizes: tuple[int, int, int]) -> None:
    plan = fk.plan(model, machine, engine=engine)
    assert (plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == sizes
    assert plan.gpus == sizes[0] * sizes[1] * sizes[2]
    read = fk.read_command(plan.command)
    assert read.gpus == plan.gpus
    assert read.options.get("data_parallel_size", 1) == sizes[2]
    again = fk.fit(machines=machine, **read.arguments()).iloc[0]
    row = fk.fit(model, machine, engine=engine).iloc[0]
    assert (again.fits, again.total_bytes, again.fit_gpus) == (row.fits, row.total_bytes, row.fit_gpus)
    assert fk.Plan.from_json(plan.to_json()) == plan


def test_data_parallel_ranks_share_experts_and_repeat_the_rest() -> None:
    model = fk.load("deepseek-v3")
    spread = fk.demand(model, engine=fk.VLLM(data_parallel_size=8, enable_expert_parallel=True)).iloc[0]
    tensor = fk.demand(model, engine="vllm", gpus=8).iloc[0]
    one = fk.demand("llama-3.1-8b", engine="vllm").iloc[0]
    dense = fk.demand("llama-3.1-8b", engine=fk.VLLM(data_parallel_size=2)).iloc[0]
    assert dense.weights_bytes == 2 * one.weights_bytes
    assert tensor.weights_bytes < spread.weights_bytes < 2 * tensor.weights_bytes


def test_gpus_that_a_layout_does_not_divide_are_refused() -> None:
    engine = fk.VLLM(data_parallel_size=8, enable_expert_parallel=True)
    for gpus in (1, 12):
        with pytest.raises(fk.BadInput, match="data_parallel_size 8: a multiple of 8 was expected"):
            fk.fit("deepseek-v3", "8x H200", engine=engine, gpus=gpus)
    table = fk.fit("deepseek-v3", "8x H200", engine=engine, gpus=[1, 8])
    assert list(table.fits) == [False, True]
    assert "--data-parallel-size 8" in fk.command(table.iloc[0])


def test_data_parallel_over_machines() -> None:
    two = replace(fk.machine("8x H200"), nodes=2)
    plan = fk.plan("deepseek-v3", two, engine=fk.VLLM(data_parallel_size=16, enable_expert_parallel=True))
    assert (plan.gpus, plan.nodes, plan.tensor_parallel, plan.pipeline_parallel, plan.data_parallel) == (
        16,
        2,
        1,
        1,
        16,
    )
    assert "--data-parallel-size 16 --data-parallel-size-local 8 --data-parallel-backend ray" in plan.command


def test_a_plan_that_waits_keeps_its_layout() -> None:
    plan = fk.plan("deepseek-v3", "8x H100", engine=fk.VLLM(data_parallel_size=8, enable_expert_parallel=True))
    assert (plan.waits, plan.gpus, plan.data_parallel) == (True, 8, 8)
    assert "the weights go over" in plan.reason


def test_some_of_a_machines_gpus_are_named() -> None:
    found = line("llama-3.3-70b", "8x RTX 4090", "Q4_K_M", gpus=4)
    assert found.endswith("--device CUDA0,CUDA1,CUDA2,CUDA3")
    assert fk.read_command(found).gpus == 4
    assert fk.read_command(found).ignored == ()
    assert "--device ROCm0,ROCm1" in line("llama-3.3-70b", "8x MI300X", "BF16", gpus=2)
    assert "--device" not in line("llama-3.3-70b", "4x RTX 4090", "Q4_K_M", gpus=4)
    assert fk.read_command("llama-server -m a.gguf -dev none").gpus == 0


def test_every_option_that_was_set_is_in_the_line() -> None:
    engine = fk.VLLM(dtype="float16", limit_mm_per_prompt={"image": 0}, max_num_seqs=64, max_num_batched_tokens=4096)
    found = line("gemma-3-27b-it", "1x H100 80GB", engine=engine)
    read = fk.read_command(found)
    assert read.ignored == ()
    for name in ("dtype", "limit_mm_per_prompt", "max_num_seqs", "max_num_batched_tokens"):
        assert read.options[name] == getattr(engine, name)
    assert fk.read_command("vllm serve a/b --limit-mm-per-prompt image=2,video=0").options == {
        "limit_mm_per_prompt": {"image": 2, "video": 0}
    }
    for wrong in ("image", "{}", "[1]", '{"image": -1}', '{"image": [1]}', "{"):
        with pytest.raises(fk.BadInput, match="limit-mm-per-prompt"):
            fk.read_command(f"vllm serve a/b --limit-mm-per-prompt '{wrong}'")
    draft = fk.load("llama-3.2-1b").with_(quant="Q4_K_M")
    assert "--model-draft llama-3.2-1b.gguf" in line("llama-3.1-8b", "H100", "Q4_K_M", engine=fk.LlamaCpp(draft=draft))


def test_a_row_that_does_not_fit_has_its_line_too() -> None:
    row = fk.fit("llama-3.3-70b", "1x RTX 4090", "Q4_K_M").iloc[0]
    assert not row.fits
    assert fk.command(row).startswith("llama-server")
    plan = fk.plan("llama-3.3-70b", "1x RTX 4090", quants="Q4_K_M")
    assert plan.waits
    assert plan.reason
