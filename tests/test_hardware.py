"""Machines in one line, what the cards report, and what cannot be."""

from __future__ import annotations

import math

import pytest

from fitkit import BadInput, Machine, UnknownName, machine
from fitkit.hardware import all_gpus, all_machines, gpu
from fitkit.units import GB, GIB, MIB


@pytest.mark.parametrize(
    ("text", "name", "count", "nominal_gib"),
    [
        ("8x H100 80GB", "8x H100 80GB", 8, 80),
        ("8×H100-80GB", "8x H100 80GB", 8, 80),
        ("H100 80GB x 8", "8x H100 80GB", 8, 80),
        ("h100", "1x H100 80GB", 1, 80),
        ("a100", "1x A100 80GB", 1, 80),
        ("NVIDIA H100 80GB HBM3", "1x H100 80GB", 1, 80),
        ("1x RTX 4090", "1x RTX 4090", 1, 24),
        ("NVIDIA GeForce RTX 3060", "1x RTX 3060 12GB", 1, 12),
        ("1x RX 7900 XTX", "1x RX 7900 XTX", 1, 24),
        ("AMD Instinct MI300X", "1x MI300X", 1, 192),
        ("2x 24GiB", "2x 24 GiB", 2, 24),
        ("2X 24 gb", "2x 24 GiB", 2, 24),
        ("24 GiB", "1x 24 GiB", 1, 24),
        ("DGX H100", "DGX H100", 8, 80),
        ("AWS p5", "AWS p5.48xlarge", 8, 80),
        ("4x MI250X", "4x MI250X", 8, 64),
    ],
)
def test_one_line(text: str, name: str, count: int, nominal_gib: float) -> None:
    made = machine(text)
    assert (made.name, made.count, made.gpu_nominal_gib) == (name, count, nominal_gib)


def test_every_catalog_name_is_a_machine() -> None:
    for found in all_machines():
        assert machine(found.name) == found
    for chip in all_gpus():
        assert machine(f"2x {chip.name}").gpu == chip
        assert machine(chip.name).count == chip.devices


def test_a_machine_name_reads_back() -> None:
    for text in ("8x H100 80GB", "rtx 4090", "2x 24GiB", "DGX A100", "M4 Max 128GB", "3x 17.5 GiB"):
        made = machine(text)
        assert machine(made.name) == made


def test_what_is_reported_is_what_engines_see() -> None:
    h100 = gpu("h100")
    assert (h100.nominal_bytes, h100.driver_bytes) == (80 * GIB, 81_559 * MIB)
    assert h100.seen_bytes / GIB == pytest.approx(79.2, abs=0.15)
    assert gpu("24 GiB").seen_bytes == 24 * GIB


def test_a_count_before_whole_machines_is_nodes() -> None:
    assert (machine("2x DGX H100").nodes, machine("2x DGX H100").count) == (2, 8)
    assert machine("DGX H100", nodes=3).nodes == 3
    assert machine("2x DGX H100", nodes=3).nodes == 6


def test_beside_the_gpus() -> None:
    made = machine("8x H100 80GB", ram_gb=2048, disk_free_gb=500, taken_gib=1.5)
    assert (made.ram_bytes, made.disk_free_bytes, made.taken_bytes) == (2048 * GB, 500 * GB, int(1.5 * GIB))
    assert machine("h100").disk_free_bytes is None
    assert machine("h100", data_location=False).disk_free_bytes == -1
    assert machine(made, taken_gib=0).taken_bytes == 0


def test_a_machine_without_gpus() -> None:
    made = machine("CPU", ram_gb=64)
    assert (made.name, made.gpu, made.count, made.ram_bytes) == ("CPU", None, 0, 64 * GB)


@pytest.mark.parametrize(
    ("text", "low_gib", "high_gib"),
    [("M2 16GB", 10.667, 11.84), ("M3 Pro 18GB", 12, 12), ("M3 Max 36GB", 27, 28.08), ("M4 Max 128GB", 96, 107.52), ("Mac Studio M3 Ultra 512GB", 384, 464), ("M2 Max 96GB", 72, 72)],
)  # fmt: skip
def test_what_macos_lets_the_gpu_use(text: str, low_gib: float, high_gib: float) -> None:
    chip = machine(text).gpu
    assert chip is not None
    assert chip.unified
    assert chip.backend == "metal"
    assert chip.usable_bytes / GIB == pytest.approx(low_gib, abs=0.01)
    assert chip.usable_high_bytes / GIB == pytest.approx(high_gib, abs=0.01)


def test_macos_version_or_a_limit_set_by_hand() -> None:
    def usable(**said: object) -> float:
        chip = machine("M4 Max 128GB", **said).gpu  # type: ignore[arg-type]
        assert chip is not None
        assert chip.usable_bytes == chip.usable_high_bytes
        return chip.usable_bytes / GIB

    assert usable(macos="14") == pytest.approx(96)
    assert usable(macos="26.1") == pytest.approx(107.52)
    assert usable(gpu_limit_gib=120) == 120


def test_apple_memory_may_be_given_apart() -> None:
    assert machine("M4 Max", ram_gb=128) == machine("MacBook Pro M4 Max 128GB")
    with pytest.raises(UnknownName, match="36GB, M4 Max 48GB"):
        machine("M4 Max")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "0x H100",
        "-2x H100",
        "1.5x H100",
        "999999999x H100",
        "0 GiB",
        "-24 GiB",
        "2x",
        "x",
        "x" * 500,
        "8x",
        "8x NoSuchCard",
        "2x 2x h100",
    ],
)
def test_impossible_lines(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        machine(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "said",
    [
        {"ram_gb": -1}, {"ram_gb": math.nan}, {"ram_gb": math.inf}, {"ram_gb": True}, {"ram_gb": "64"}, {"disk_free_gb": -5}, {"taken_gib": -1}, {"taken_gib": 81},
        {"nodes": 0}, {"nodes": 1.5}, {"backend": "cude"}, {"macos": "sonoma?"}, {"gpu_limit_gib": 100},
    ],
)  # fmt: skip
def test_impossible_values(said: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        machine("M3 Max 64GB" if "macos" in said else "h100", **said)  # type: ignore[arg-type]


def test_memory_behind_a_name() -> None:
    assert machine("RTX PRO 6000 Blackwell 96GB").name == "1x RTX PRO 6000"
    assert machine("MI250X 128GB").count == 2
    with pytest.raises(BadInput, match=r"listed with 24 GB.*'48 GiB'"):
        machine("RTX 4090 48GB")


def test_mixed_gpus_are_told_apart() -> None:
    with pytest.raises(BadInput, match="different kinds"):
        machine("RTX 4090 + 2x RTX 3090")


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(TypeError):
        machine("h100", ram=4)  # type: ignore[call-arg]


def test_a_misspelt_card_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="RTX 4090"):
        machine("8x rtx 4900")


@pytest.mark.parametrize("thing", [3, None, 1.5, ["h100"], b"h100"])
def test_no_text_is_no_machine(thing: object) -> None:
    with pytest.raises(BadInput):
        machine(thing)  # type: ignore[arg-type]


def test_a_machine_passes_through() -> None:
    own = Machine(name="mine", gpu=gpu("l4"), count=2)
    assert machine(own) is own or machine(own) == own
