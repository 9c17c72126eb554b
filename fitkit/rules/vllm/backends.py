"""Which attention kernel vLLM picks for a layer, and the block sizes that kernel reads.

vLLM walks an order of kernels per compute capability and takes the first that supports the layer. Only what decides
memory is kept here: the block sizes, what fp8 becomes, and the refusals.

Source: vLLM 0.33.0, platforms/cuda.py and v1/attention/backends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fitkit.rules.vllm.device import Device

PLAIN = ("auto", "float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A layer as a kernel's support test sees it."""

    capability: tuple[int, int]
    kv_dtype: str
    head_dim: int
    v_dim: int
    heads: int = 0  # query heads of one rank
    latent: bool = False
    sparse: bool = False
    image_prefix: bool = False  # images attend both ways (Gemma 3, Gemma 4 with a vision tower)
    sinks: bool = False

    @property
    def major(self) -> int:
        """Major compute capability."""
        return self.capability[0]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A backend: its name, the block sizes it reads (each one a size, or with `multiples` any multiple of it)."""

    name: str
    sizes: tuple[int, ...]
    multiples: bool
    supports: Callable[[Ask], bool]

    @property
    def smallest(self) -> int:
        """The smallest block it reads."""
        return min(self.sizes)

    def takes(self, block: int) -> bool:
        """Whether it reads blocks of that many tokens, in pieces if need be."""
        return any(block % size == 0 for size in self.sizes)

    def largest_within(self, tokens: int) -> int:
        """The largest block it reads that has at most `tokens` tokens, else its smallest."""
        if self.multiples:
            return max(self.smallest, tokens // self.smallest * self.smallest)
        return max((size for size in self.sizes if size <= tokens), default=self.smallest)


def _flash_version(ask: Ask) -> int:
    """The FlashAttention generation: 3 on Hopper (4 for wide heads), 4 on SM100 where the head fits, else 2."""
    if ask.major == 9:
        return 4 if ask.head_dim > 256 else 3
    if ask.major == 10 and (
        ask.head_dim <= 128 or (ask.head_dim, ask.v_dim) == (192, 128) or ask.head_dim == ask.v_dim == 256
    ):
        return 4
    return 2


def _flash(ask: Ask) -> bool:
    if ask.major < 8 or ask.head_dim % 8 or ask.head_dim > 512 or (ask.sinks and ask.major < 9):
        return False
    version = _flash_version(ask)
    if ask.head_dim > 256 and version != 4:
        return False
    if ask.image_prefix and (version != 4 or (ask.major == 9 and ask.kv_dtype not in PLAIN)):
        return False
    if ask.kv_dtype in PLAIN:
        return True
    return ask.kv_dtype in ("fp8", "fp8_e4m3") and (
        (ask.major == 9 and (version == 3 or ask.head_dim == 512)) or (ask.major == 10 and version == 4)
    )


def _flashinfer(ask: Ask) -> bool:
    if ask.sinks or ask.image_prefix or not (8, 0) <= ask.capability <= (12, 1):
        return False
    return ask.head_dim in (64, 128, 256, 512) and ask.kv_dtype in (*PLAIN, "fp8", "fp8_e4m3", "fp8_e5m2")


def _triton(ask: Ask) -> bool:
    return ask.head_dim >= 32 and not ask.kv_dtype.startswith(("nvfp4", "turboquant", "fp8_ds"))


def _wide_fp8(ask: Ask) -> bool:
    return ask.major == 9 and ask.head_dim == 512 and ask.kv_dtype in ("fp8", "fp8_e4m3")


def _mixed(ask: Ask) -> bool:
    """A kernel pair for image prefixes: Triton for the images, a faster one for the rest."""
    if not ask.image_prefix or ask.major not in (9, 10):
        return False
    return ask.head_dim in (256, 512) and ask.kv_dtype in (*PLAIN, "fp8", "fp8_e4m3")


FLASH = Kernel("FLASH_ATTN", (16,), True, _flash)
FLASH_64 = Kernel("FLASH_ATTN", (64,), False, _wide_fp8)  # Hopper's fp8 kernel for heads of 512
FLASHINFER = Kernel("FLASHINFER", (16, 32, 64), False, _flashinfer)
TRITON = Kernel("TRITON_ATTN", (16,), True, _triton)
TURBO = Kernel("TURBOQUANT", (16, 32, 64, 128), False, lambda ask: ask.kv_dtype.startswith("turboquant"))
TRITON_FLASH = Kernel("TRITON_FLASH_ATTN", (16,), True, _mixed)
TRITON_FLASHINFER = Kernel("TRITON_FLASHINFER", (64,), False, _mixed)

DENSE_SM100 = (TRITON_FLASHINFER, FLASHINFER, FLASH, TRITON, TURBO)
DENSE = (FLASH_64, TRITON_FLASH, FLASH, FLASHINFER, TRITON, TURBO)

_FP8 = (*PLAIN, "fp8", "fp8_e4m3")
FLASHINFER_MLA = Kernel("FLASHINFER_MLA", (32, 64), False, lambda ask: ask.kv_dtype in _FP8)
FLASH_MLA_BF16 = Kernel("FLASH_ATTN_MLA", (16,), True, lambda ask: ask.major == 9 and ask.kv_dtype in PLAIN)
FLASHMLA = Kernel("FLASHMLA", (64,), False, lambda ask: ask.major in (9, 10) and ask.kv_dtype in _FP8)
TRITON_MLA = Kernel("TRITON_MLA", (16,), True, lambda ask: ask.kv_dtype in _FP8)
SPARSE_BF16 = Kernel("FLASH_ATTN_MLA_SPARSE", (64,), True, lambda ask: ask.major == 9 and ask.kv_dtype in PLAIN)
SPARSE_FLASHMLA = Kernel(
    "FLASHMLA_SPARSE", (64,), True,
    lambda ask: ask.kv_dtype in ("auto", "bfloat16", "fp8_ds_mla", "fp8")
    or (ask.kv_dtype == "nvfp4_ds_mla" and ask.major == 10),
)  # fmt: skip
SPARSE_SM90 = Kernel("FLASHINFER_MLA_SPARSE_SM90", (64,), True, lambda ask: ask.kv_dtype in _FP8)
SPARSE_SM100 = Kernel("FLASHINFER_MLA_SPARSE", (32,), True, lambda ask: ask.kv_dtype in _FP8)
SPARSE_SM120 = Kernel(
    "FLASHINFER_MLA_SPARSE_SM120", (64,), True, lambda ask: ask.kv_dtype in ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")
)
INDEXER = Kernel("DEEPSEEK_V32_INDEXER", (64,), False, lambda ask: True)
BLOCK_SPARSE = Kernel("MINIMAX_M3_SPARSE", (128,), False, lambda ask: True)


def order(ask: Ask) -> tuple[Kernel, ...]:
    """The kernels vLLM tries for such a layer, in its order."""
    if not ask.latent:
        return DENSE_SM100 if ask.major == 10 else DENSE
    if ask.sparse:
        if ask.major == 10:
            return (SPARSE_FLASHMLA, SPARSE_SM100) if ask.kv_dtype in PLAIN else (SPARSE_SM100, SPARSE_FLASHMLA)
        return {9: (SPARSE_BF16, SPARSE_FLASHMLA, SPARSE_SM90), 12: (SPARSE_SM120,)}.get(ask.major, ())
    if ask.major == 10:
        return (FLASHINFER_MLA, FLASHMLA, TRITON_MLA)
    if ask.major == 12:
        return (TRITON_MLA,)
    return (FLASH_MLA_BF16, FLASHMLA, TRITON_MLA)


def choose(ask: Ask) -> Kernel | None:
    """The first kernel that supports the layer, None where vLLM finds none."""
    return next((kernel for kernel in order(ask) if kernel.supports(ask)), None)


def refused(ask: Ask, kernel: Kernel | None, device: Device) -> str:
    """Why vLLM stops at this layer's kernel, empty where it does not."""
    if kernel is None:
        what = "sparse MLA" if ask.sparse else "MLA" if ask.latent else f"heads of {ask.head_dim}"
        return f"vLLM finds no attention backend for {what} with a {ask.kv_dtype} KV cache on {device.name} (compute capability {ask.major}.{ask.capability[1]})."
    if kernel in (TRITON, TRITON_MLA) and ask.kv_dtype in ("fp8", "fp8_e4m3") and (0, 0) < ask.capability < (8, 9):
        mla = "MLA" if ask.latent else "attention"
        return (
            f"An FP8 KV cache is not supported by vLLM's Triton {mla} backend on {device.name} (compute capability "
            f"{ask.major}.{ask.capability[1]}, native FP8 needs 8.9); use --kv-cache-dtype bfloat16."
        )
    return ""


def sparse_dtype(kernel: Kernel, kv_dtype: str) -> str:
    """What a sparse-MLA kernel stores when asked for `kv_dtype`."""
    if kernel is SPARSE_FLASHMLA and kv_dtype not in (*PLAIN, "nvfp4_ds_mla"):
        return "fp8_ds_mla"
    if kernel is SPARSE_SM120:
        return "fp8_ds_mla"
    return kv_dtype
