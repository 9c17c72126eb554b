"""Fuzzes what describes a model, by hand: `python tests/fuzz_headers.py --minutes 60`.

Sound GGUF headers, safetensors headers and configs are damaged at random (bytes overwritten, cut out, put in, doubled; values of
JSON replaced) and read. Each must become a model or a FitError within a second, under a limit on the process's memory. What does
not is written to --out, one file a finding with its kind, its seed and the error; tests keep what is worth keeping.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gguf_files

import fitkit as fk
from fitkit.sources.gguf import model_from_bytes
from fitkit.sources.remote import named, repo_model
from fitkit.sources.safetensors import read_header
from fitkit.sources.wire import Answer

HERE = Path(__file__).parent
MOST_SECONDS, MOST_MEMORY = 1.0, 3 * 2**30
SIZES = (0, 1, 2, 3, 31, 32, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, "", "x" * 1000, "\x00<b>", -1, 0, 1, 3, 7, 0.5, 1e308, float("nan"), float("inf"), 2**31, 2**53, 2**62, -(2**62), 10**30, True, False,
    [], [1], [-1] * 3, [[[]]], [None], ["full_attention"] * 5, [2**40] * 4, {}, {"a": 1}, {"model_type": "llama"},
)  # fmt: skip


class Memory:
    """Bytes in memory, as long as a file says it is."""

    def __init__(self, raw: bytes, size: int) -> None:
        self.raw, self.size, self.place = raw, size, "fuzzed.gguf"

    def read(self, offset: int, length: int) -> bytes:
        piece = self.raw[offset : offset + length]
        return piece[: self.size - offset] + bytes(max(0, min(length, self.size - offset) - len(piece)))


def damage(raw: bytes, luck: random.Random) -> bytes:
    """`raw` with one to six pieces changed."""
    out = bytearray(raw)
    for _ in range(luck.choice((1, 1, 1, 2, 3, 6))):
        at = luck.randrange(len(out) + 1)
        kind = luck.random()
        if kind < 0.35:
            out[at : at + 8] = struct.pack("<Q", luck.choice(SIZES))
        elif kind < 0.55:
            out[at : at + 4] = struct.pack("<I", luck.choice(SIZES) & 0xFFFFFFFF)
        elif kind < 0.75:
            out[at : at + 1] = bytes([luck.randrange(256)])
        elif kind < 0.85:
            del out[at : at + luck.choice((1, 2, 8, 100))]
        elif kind < 0.95:
            start = luck.randrange(len(out) + 1)
            out[at:at] = out[start : start + luck.choice((1, 8, 24, 200))]
        else:
            del out[at:]
    return bytes(out)


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value of a nested mapping or list is."""
    out = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        out.append((*above, key))
        out += places(inner, (*above, key))
    return out


def spoil(config: Any, luck: random.Random, others: list[Any]) -> None:
    """Replace, drop, rename or bring in one value."""
    found = places(config)
    if not found:
        return
    *path, last = luck.choice(found)
    at = config
    for key in path:
        at = at[key]
    kind = luck.random()
    if kind < 0.15:
        del at[last]
    elif kind < 0.3 and isinstance(at, dict):
        other = luck.choice(others)
        key = luck.choice(list(other) or ["a"])
        at[key] = copy.deepcopy(other.get(key))
    elif kind < 0.5 and isinstance(at[last], int):
        at[last] = luck.choice((at[last] + 1, at[last] - 1, -at[last], at[last] * 2**20, at[last] / 2, *SIZES))
    else:
        at[last] = copy.deepcopy(luck.choice(VALUES))


class Told:
    """A hub's answers from memory, in place of a Wire; one of its files, listings or headers is damaged."""

    def __init__(self, files: dict[str, bytes], luck: random.Random) -> None:
        self.luck, self.files = luck, files
        self.spoiled = luck.choice(["listing", "headers", *files])

    def get(self, url: str, most: int, *, what: str = "", span: tuple[int, int] | None = None) -> Answer:
        """A file, a range of it, or the listing."""
        name = url.rpartition("/")[2]
        body = self.files.get(name)
        if body is None:
            siblings = [{"rfilename": one, "size": len(raw)} for one, raw in self.files.items()]
            body, name = json.dumps({"sha": "abc", "siblings": siblings}).encode(), "listing"
        if name == self.spoiled:
            body = damage(body, self.luck)
        headers = {"etag": '"1"'}
        if not span:
            return Answer(200, headers, body, url)
        size = 2**40 if name.endswith(".gguf") else len(body)
        piece = Memory(body, size).read(*span)
        headers["content-range"] = f"bytes {span[0]}-{span[0] + len(piece) - 1}/{size}"
        if self.spoiled == "headers":
            headers["content-range"] = damage(headers["content-range"].encode(), self.luck).decode("latin-1")
        return Answer(206, headers, piece, url)


def gguf_seeds() -> list[bytes]:
    """Headers of a dozen measured models, as the gguf package writes them."""
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(gguf_files.shapes())[::4]:
            path = gguf_files.measured_file(name, Path(folder))
            with path.open("rb") as file:
                out.append(file.read(2**18))
            path.unlink()
    return out


def configs() -> list[dict[str, Any]]:
    """Configs of the measured tables."""
    out = []
    for table, column in (("multimodal_params.csv", "config"), ("quantized_weights.csv", "config")):
        with (HERE / "measured" / table).open(newline="", encoding="utf-8") as file:
            out += [json.loads(row[column]) for row in csv.DictReader(file) if row.get(column)]
    return out


def safetensors_seed() -> dict[str, Any]:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for i in range(40):
        entries[f"model.layers.{i}.w"] = {"dtype": "BF16", "shape": [8, 4], "data_offsets": [at, at + 64]}
        at += 64
    return entries


def cases() -> dict[str, Callable[[random.Random], tuple[bytes, Callable[[], object]]]]:
    """Kind → what makes one damaged input and the reading of it."""
    headers, described, entries = gguf_seeds(), configs(), safetensors_seed()
    base = json.dumps(entries).encode()

    def a_gguf(luck: random.Random) -> tuple[bytes, Callable[[], object]]:
        raw = damage(luck.choice(headers), luck)
        size = luck.choice((len(raw), 2**40))
        return raw, lambda: model_from_bytes([Memory(raw, size)])

    def a_safetensors(luck: random.Random) -> tuple[bytes, Callable[[], object]]:
        if luck.random() < 0.5:
            text = damage(base, luck)
        else:
            spoiled = copy.deepcopy(entries)
            spoil(spoiled, luck, [entries])
            text = json.dumps(spoiled).encode()
        length = len(text) if luck.random() < 0.9 else luck.choice(SIZES)
        raw = struct.pack("<Q", length) + text
        size = len(raw) + luck.choice((2560, 2560, 0, 64))
        return raw, lambda: read_header(lambda at, n: raw[at : at + n], size, "fuzzed.safetensors")

    def a_config(luck: random.Random) -> tuple[bytes, Callable[[], object]]:
        config = copy.deepcopy(luck.choice(described))
        for _ in range(luck.choice((1, 1, 2, 4))):
            spoil(config, luck, described)
        return json.dumps(config).encode(), lambda: fk.load(config)

    folder = Path(tempfile.mkdtemp())

    def a_file(luck: random.Random) -> tuple[bytes, Callable[[], object]]:
        raw = damage(json.dumps(luck.choice(described)).encode(), luck)
        path = folder / "config.json"
        path.write_bytes(raw)
        return raw, lambda: fk.load(path)

    def a_repository(luck: random.Random) -> tuple[bytes, Callable[[], object]]:
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        index = {
            "metadata": {"total_size": 2560},
            "weight_map": {key: luck.choice(names) for key in entries if key[0] != "_"},
        }
        second = base.replace(b"layers.", b"blocks.")
        files = {
            "config.json": json.dumps(luck.choice(described)).encode(),
            "model.safetensors.index.json": json.dumps(index).encode(),
        }
        if luck.random() < 0.7:
            files |= {
                name: struct.pack("<Q", len(raw)) + raw + bytes(2560)
                for name, raw in zip(names, (base, second), strict=True)
            }
        else:
            files["m-Q8_0.gguf"] = luck.choice(headers)
        told = Told(files, luck)
        wanted = named("org/repo:Q8_0" if "m-Q8_0.gguf" in files else "org/repo")
        return told.spoiled.encode(), lambda: repo_model(wanted, told)  # type: ignore[arg-type]

    return {
        "repository": a_repository,
        "gguf": a_gguf,
        "safetensors": a_safetensors,
        "config": a_config,
        "file": a_file,
    }


def main() -> int:
    """Run for --minutes; the findings' number is the exit status's ground."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("fuzz_found"))
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    os.environ["HF_HUB_CACHE"] = "/dev/null"  # nothing is kept
    makers, runs, found = cases(), Counter[str](), Counter[str]()
    end, number = time.monotonic() + 60 * asked.minutes, 0
    kept: set[str] = set()
    while time.monotonic() < end:
        number += 1
        luck = random.Random(asked.seed * 2**32 + number)
        kind = luck.choice(list(makers))
        raw, read = makers[kind](luck)
        runs[kind] += 1
        started, wrong = time.process_time(), ""
        try:
            read()
            runs[kind + " accepted"] += 1
        except fk.FitError as error:
            if "\n" in str(error) or not str(error).isprintable():
                wrong = "a message with control characters: " + repr(str(error))
        except Exception as error:
            wrong = f"{type(error).__name__} at {traceback.extract_tb(error.__traceback__)[-1]}"
        if not wrong and time.process_time() - started > MOST_SECONDS:
            wrong = "slow"
        if wrong:
            found[kind] += 1
            if wrong not in kept:
                kept.add(wrong)
                asked.out.mkdir(parents=True, exist_ok=True)
                (asked.out / f"{kind}-{number}").write_bytes(raw)
                (asked.out / f"{kind}-{number}.txt").write_text(wrong)
                print(kind, number, wrong, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{number:,} inputs, {dict(runs)}, findings {dict(found)}, peak {peak} MiB")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
