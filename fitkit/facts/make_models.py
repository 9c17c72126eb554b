"""Makes models.csv from a folder of facts: `python -m fitkit.facts.make_models FACTS_DIR`.

FACTS_DIR holds configs/*/*/config.json with index.csv (published totals, how many sources agree) and params.csv (downloads, license). A row keeps only the numbers that the family's function reads; each is built again
from its own text and must give the same model. What no family reads yet is listed and left out.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fitkit.errors import BadInput, FitError
from fitkit.facts import fold, headers, rows, shape, totals

if TYPE_CHECKING:
    from fitkit.model import Model

COLUMNS = (
    "name", "repo", "aliases", "task", "family", "params", "active_params", "layers", "layer_kinds", "context", "vocab", "quant",
    "gguf_header_bytes", "header_basis", "downloads", "license", "released", "agree", "published_params", "why", "shape", "packing", "source", "checked",
)  # fmt: skip
CHECKED = "2026-10-31"
_EMBEDDING = re.compile(r"embed|rerank|reward|bge-|e5-|gte-|minilm|bert", re.IGNORECASE)
_PACKED = re.compile(r"-(fp8|nvfp4|mxfp4|awq|gptq|int[48]|w4a16|w8a8)(-|$)", re.IGNORECASE)
_QUANTIZATION = ("quantization_config", "compression_config", "hf_quant_config")
_TWIN = re.compile(
    r"-(instruct|chat|it|hf|base|pt|bf16)(?=-|$)", re.IGNORECASE
)  # of one shape, told apart by training only
_VERSION = re.compile(r"(?<=\db)-v\d+(\.\d+)?$")
_MAKER = re.compile(r"^(meta|nvidia)-(?=llama|nemotron)", re.IGNORECASE)


@dataclass(slots=True)
class Entry:
    """A model found: its facts, and the twins that share its shape."""

    repo: str
    model: Model
    shape: str
    packing: str
    facts: dict[str, str]
    params: dict[str, str]
    twins: list[str] = field(default_factory=list)
    name: str = ""
    aliases: list[str] = field(default_factory=list)

    @property
    def downloads(self) -> int:
        """A month's downloads from the hub."""
        return int(self.facts["hf_downloads"] or self.params.get("hf_downloads") or 0)

    @property
    def tail(self) -> str:
        """The repository's own part of its id, in lower case, without the maker's name in front."""
        return _tail(self.repo)

    @property
    def short(self) -> str:
        """The tail without what tells twins apart."""
        return _short(self.repo)


def main(folder: Path) -> None:
    """Write models.csv beside this file."""
    found, refused = read(folder)
    entries = merged(sorted(found, key=lambda entry: (-entry.downloads, entry.repo)))
    add_copies(entries, _table(folder / "params.csv"))
    name_all(entries)
    alias_all(entries)
    path = Path(__file__).with_name("models.csv")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row(entry) for entry in entries)
    for text in refused:
        print("left out:", text[:160])
    print(f"{len(entries)} rows for {len(found)} models; {len(refused)} left out")


def read(folder: Path) -> tuple[list[Entry], list[str]]:
    """Every config that a family reads, and a sentence for each that none does."""
    from fitkit.sources.checkpoint import config_of

    params = {line["model"]: line for line in _table(folder / "params.csv")}
    found, refused = [], []
    for line in _table(folder / "index.csv"):
        path = folder / "configs" / line["path"]
        if not path.is_file():
            continue
        try:
            model, text, packing = told(repaired(line["model"], config_of(path)))
        except FitError as error:
            refused.append(f"{line['model']}: {error}")
            continue
        if not model.quant and _PACKED.search(line["model"]):
            refused.append(f"{line['model']}: its name says that it is packed, its config does not say how")
            continue
        found.append(Entry(line["model"], model, text, packing, line, params.get(line["model"], {})))
    return found, refused


def repaired(repo: str, config: dict[str, Any]) -> dict[str, Any]:
    """The config with what is known to be wrong in it set right (repairs.csv)."""
    for line in rows("repairs"):
        if line["repo"] == repo:
            _merge(config, shape.decode(line["instead"]))
    return config


def _merge(into: dict[str, Any], entries: dict[str, Any]) -> None:
    for key, value in entries.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def told(config: Mapping[str, Any]) -> tuple[Model, str, str]:
    """The model of a config, its shape and its packing as texts. Raises FitError where the texts do not give the same model again."""
    from fitkit.sources.config import model_from_config, model_from_view
    from fitkit.sources.config.view import Config
    from fitkit.sources.packings import packed_as, packing_of

    model = model_from_config(config, name="-", source="-")
    view = Config({key: value for key, value in config.items() if key not in _QUANTIZATION})
    if isinstance(text := config.get("text_config"), dict):
        view = view.but(text_config={key: value for key, value in text.items() if key not in _QUANTIZATION})
    plain = model_from_view(view, name="-", source="-")
    packing = packing_of(plain, model) if model.quant else ""
    shaped = shape.encode(view.recorded())
    if packed_as(model_from_config(shape.decode(shaped), name="-", source="-"), packing) != model:
        raise BadInput("what was read of its config does not give the same model again.")
    return model, shaped, packing


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """One entry for models that differ in training only, and for copies under another maker; the config that says most gives the shape."""
    out: dict[tuple[str, Model], Entry] = {}
    for entry in entries:
        first = out.setdefault((entry.short, entry.model.with_(extra=())), entry)
        if first is entry:
            continue
        first.twins.append(entry.repo)
        if len(entry.shape) > len(first.shape):
            first.model, first.shape, first.packing = entry.model, entry.shape, entry.packing
    return list(out.values())


def add_copies(entries: list[Entry], published: list[dict[str, str]]) -> None:
    """Repositories that hold the same model again: same name but for the maker, same published shape, total and context."""
    keys = ("architecture", "layers", "hidden", "heads", "kv_heads", "vocab", "params_total", "context_length")
    by_name = {entry.short: entry for entry in reversed(entries) if entry.params and not entry.model.quant}
    known = {repo for entry in entries for repo in (entry.repo, *entry.twins)}
    for line in published:
        entry = by_name.get(_short(line["model"]))
        if (
            entry
            and line["model"] not in known
            and "mlx" not in line["model"].lower()
            and all(line[key] == entry.params[key] for key in keys)
        ):
            entry.twins.append(line["model"])


def name_all(entries: list[Entry]) -> None:
    """A short name each, the most downloaded first: gemma keeps its -it, since both kinds are named that way everywhere."""
    taken: set[str] = set()
    unversioned = Counter(_VERSION.sub("", entry.short) for entry in entries)
    for entry in entries:
        tail = re.sub(r"-(instruct|chat|hf|bf16)(?=-|$)", "", entry.tail)
        if unversioned[_VERSION.sub("", entry.short)] == 1:
            tail = _VERSION.sub("", tail)
        base = f"{tail}-base" if "instruct" not in entry.tail and "chat" not in entry.tail else entry.tail
        org = entry.repo.split("/")[0].lower()
        entry.name = next(
            name for name in (tail, entry.tail, base, f"{org}-{tail}", f"{org}-{entry.tail}") if fold(name) not in taken
        )
        taken |= {fold(name) for name in (entry.name, *(repo.split("/")[-1] for repo in (entry.repo, *entry.twins)))}


def alias_all(entries: list[Entry]) -> None:
    """Every other name an entry answers to; where two could claim one, ids come first, then nicknames, then the more downloaded."""
    nicknames: dict[str, list[str]] = {}
    for line in rows("nicknames"):
        nicknames.setdefault(line["repo"], []).append(line["name"])
    taken = {fold(entry.name) for entry in entries}
    for claims in (
        lambda entry: (entry.repo, *entry.twins),
        lambda entry: [name for repo in (entry.repo, *entry.twins) for name in nicknames.get(repo, ())],
        _others,
    ):
        for entry in entries:
            for name in claims(entry):
                if fold(name) not in taken:
                    taken.add(fold(name))
                    entry.aliases.append(name)


def row(entry: Entry) -> list[object]:
    """One line of the table."""
    from fitkit.sources.catalog import layer_kinds

    model, line = entry.model, entry.facts
    size, basis = headers.header_bytes(model.family, model.vocab_size)
    published = line["params_hf_total"]
    return [
        entry.name, entry.repo, "|".join(entry.aliases), "embedding" if _EMBEDDING.search(entry.repo) else "text", model.family, model.params,
        model.active_params, len(model.layers), layer_kinds(model.layers), model.context, model.vocab_size, model.quant, size, basis,
        entry.downloads, entry.params.get("license", ""), entry.params.get("release_date", ""), line["verified"], published,
        totals.why(model, published, line), entry.shape, entry.packing, _source(line), CHECKED,
    ]  # fmt: skip


def _others(entry: Entry) -> Iterable[str]:
    """Names people also use: the tail alone, without twins' words, without a version or a maker."""
    for repo in (entry.repo, *entry.twins):
        tail = repo.split("/")[-1]
        yield tail
        yield _TWIN.sub("", tail)
    yield entry.short
    yield _VERSION.sub("", entry.short)


def _tail(repo: str) -> str:
    return _MAKER.sub("", repo.split("/")[-1]).lower().replace("_", ".")


def _short(repo: str) -> str:
    return _TWIN.sub("", _tail(repo))


def _source(line: dict[str, str]) -> str:
    return line["source"] + (" (rebuilt from published dimensions)" if line["kind"] == "reconstructed" else "")


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
