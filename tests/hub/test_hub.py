"""Models of hub repositories, against a server that speaks the hub's protocol: only headers travel, and refusals say what to try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, TOKEN, File, Handler, Hub
from test_safetensors import GPT_OSS_120B, LLAMA, gpt_oss_tensors, header_of, llama_tensors

import fitkit as fk
from fitkit.sources import hub as network

Shapes = dict[str, tuple[str, list[int]]]


def weights(tensors: Shapes) -> File:
    """A sparse safetensors file."""
    raw, size = header_of(tensors)
    return File(raw, len(raw) + size, lfs=True)


def text(value: Any) -> File:
    return File(json.dumps(value).encode())


def sharded(config: dict[str, Any], tensors: Shapes, count: int) -> dict[str, File]:
    """A checkpoint in `count` files with its index."""
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    placed = {tensor: names[i * count // len(tensors)] for i, tensor in enumerate(tensors)}
    files = {name: weights({t: tensors[t] for t in tensors if placed[t] == name}) for name in names}
    total = sum(header_of({t: tensors[t]})[1] for t in tensors)
    return {
        "config.json": text(config),
        "README.md": File(b"# words"),
        "model.safetensors.index.json": text({"metadata": {"total_size": total}, "weight_map": placed}),
        **files,
    }


def test_a_checkpoint_is_read_by_its_headers_alone(hub: Hub) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 3))
    model = fk.load("org/repo")
    total = header_of(llama_tensors())[1]
    assert (model.name, model.source, model.revision, model.basis) == ("org/repo", "org/repo", COMMIT, "estimate")
    assert (model.file_bytes, model.get("mismatch")) == (total, None)
    assert len(model.layers) == 2
    ranged = [one for one in hub.asked if ".safetensors" in one.path and "index" not in one.path]
    assert ranged
    assert all(one.range for one in ranged)


def test_gpt_oss_120b_is_65_gb_and_moves_less_than_a_megabyte(hub: Hub) -> None:
    hub.put("other/gpt-oss", sharded(GPT_OSS_120B, gpt_oss_tensors(), 15))
    model = fk.load("other/gpt-oss")
    assert (model.file_bytes, model.basis, model.quant) == (65_248_815_744, "estimate", "MXFP4")
    assert model.get("mismatch") is None
    assert hub.sent < 10**6


def test_a_header_longer_than_guessed_is_read_on(hub: Hub) -> None:
    many: Shapes = {**llama_tensors(), **{f"model.extra.{i:06d}.{'n' * 90}": ("F32", [1]) for i in range(3000)}}
    hub.put("org/repo", {"config.json": text(LLAMA), "model.safetensors": weights(many)})
    assert fk.load("org/repo").file_bytes == header_of(many)[1]
    assert len([one for one in hub.asked if one.origin == "cdn"]) == 2


def test_sizes_come_from_the_tree_page_by_page_where_the_listing_has_none(hub: Hub) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 3))
    hub.page, hub.sizes = 2, False
    assert fk.load("org/repo").basis == "estimate"
    assert sum("/tree/" in path for path in hub.paths()) == 3


@pytest.mark.parametrize("asked", ["org/repo@v1.0", "hf://org/repo@v1.0", f"org/repo@{COMMIT}"])
def test_a_revision_is_resolved_and_kept(hub: Hub, asked: str) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1), revisions=("main", "v1.0"))
    assert fk.load(asked).revision == COMMIT
    assert all(f"/resolve/{COMMIT}/" in path for path in hub.paths() if "/resolve/" in path)


def test_catalog_names_stay_offline_unless_asked(hub: Hub) -> None:
    known = fk.load("llama-3.1-8b")
    assert fk.load(known.source).params == known.params
    assert not hub.asked
    hub.put(known.source, sharded(LLAMA, llama_tensors(), 1))
    assert fk.load("llama-3.1-8b", online=True).revision == COMMIT


def test_unknown_keywords_are_errors() -> None:
    with pytest.raises(TypeError, match="revison"):
        fk.load("org/repo", revison="main")  # type: ignore[call-arg]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "10", True, None])
def test_a_timeout_is_seconds(timeout: Any) -> None:
    with pytest.raises(fk.BadInput, match="timeout is"):
        fk.load("org/repo", timeout=timeout)


# ---- tokens, gates, refusals -------------------------------------------------------------------------------------------------


def test_a_token_goes_to_the_hub_and_nowhere_else(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2), gated=True)
    assert fk.load("org/repo").basis == "estimate"
    assert {one.authorization for one in hub.asked if one.origin == "hub"} == {f"Bearer {TOKEN}"}
    assert {one.authorization for one in hub.asked if one.origin == "cdn"} == {""}


def test_a_gated_repository_says_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1), gated=True)
    for token, status in (("", 401), ("hf_ofSomebodyElse", 403)):
        monkeypatch.setenv("HF_TOKEN", token)
        with pytest.raises(fk.FetchError, match=r"accept its licence at .*/org/repo and set a token") as caught:
            fk.load("org/repo")
        assert caught.value.status == status
        assert "hf_of" not in str(caught.value)


def test_what_is_not_there_is_told_with_what_is_near(hub: Hub) -> None:
    hub.put(
        "org/repo", {"model-Q4_K_M.gguf": File(b"GGUF", 100, lfs=True), "model-Q8_0.gguf": File(b"GGUF", 200, lfs=True)}
    )
    with pytest.raises(fk.FetchError, match=r"meta-llama/Llama-3.1-8B-Instruct") as missing:
        fk.load("meta-llama/Llama-3.1-8B-Instrukt")
    assert missing.value.status == 401
    with pytest.raises(fk.FetchError, match="no such revision"):
        fk.load("org/repo@v9")
    with pytest.raises(fk.UnknownName, match=r"model-Q4_K_M\.gguf"):
        fk.load("hf://org/repo/model-Q4_KM.gguf")


def test_passing_trouble_is_waited_for(hub: Hub) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1))
    hub.failing["/api/models/org/repo"] = [(429, {"Retry-After": "0"}), (503, {})]
    assert fk.load("org/repo").basis == "estimate"


def test_lasting_trouble_ends(hub: Hub) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1))
    hub.failing["/api/models/org/repo"] = [(502, {})] * 9
    with pytest.raises(fk.FetchError, match=r"HTTP 502.*try again later") as caught:
        fk.load("org/repo")
    assert caught.value.status == 502
    assert len(hub.failing["/api/models/org/repo"]) == 6
    hub.failing["/api/models/org/repo"] = [(429, {"Retry-After": "3600"})]
    with pytest.raises(fk.FetchError, match="try again in 3600 s"):
        fk.load("org/repo")


# ---- the cache, offline ------------------------------------------------------------------------------------------------------


def test_small_files_are_kept_and_serve_without_the_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2))
    there = fk.load("org/repo")
    assert isinstance(try_to_load_from_cache("org/repo", "config.json"), str)
    asked = len(hub.asked)
    again = fk.load("org/repo")
    assert again == there
    assert not [path for path in hub.paths()[asked:] if path.endswith("config.json")]
    for way in ("online", "offline mode"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", way == "offline mode")
        asked = len(hub.asked)
        cached = fk.load("org/repo", online=False if way == "online" else None)
        assert (cached.basis, cached.file_bytes, cached.revision) == ("arch", there.file_bytes, COMMIT)
        assert len(hub.asked) == asked


def test_offline_without_a_copy_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for source in ("org/repo", "org/repo:Q4_K_M", hub.url + "/m.gguf"):
        with pytest.raises(fk.FetchError, match="HF_HUB_OFFLINE"):
            fk.load(source)
    assert not hub.asked


def test_a_dead_hub_is_told_and_the_cache_serves(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2))
    fk.load("org/repo")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fk.load("org/repo").basis == "arch"
    with pytest.raises(fk.FetchError, match="could not be reached"):
        fk.load("org/other")


def test_an_interrupted_read_leaves_nothing_and_can_be_repeated(hub: Hub, tmp_path: Path) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2))
    for stop_at in range(1, 5):
        seen: list[str] = []

        def stop(place: str, moved: int, seen: list[str] = seen, stop_at: int = stop_at) -> None:
            seen.append(place)
            if len(seen) == stop_at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fk.load("org/repo", progress=stop)
        for path in (tmp_path / "cache").rglob("*"):
            assert "incomplete" not in path.name
            assert not path.is_file() or path.stat().st_size
    assert fk.load("org/repo").basis == "estimate"


def test_a_file_that_breaks_off_is_asked_for_again_and_never_kept(hub: Hub, tmp_path: Path) -> None:
    files = sharded(LLAMA, llama_tensors(), 1)
    hub.put("org/repo", files)
    times: list[int] = []

    def half(handler: Handler) -> None:
        times.append(1)
        body = files["config.json"].head
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.write(body[: len(body) // 2])

    hub.faults[f"/org/repo/resolve/{COMMIT}/config.json"] = half
    with pytest.raises(fk.FetchError, match=r"config\.json could not be read|said .* bytes and sent"):
        fk.load("org/repo")
    assert len(times) == 3
    assert not list((tmp_path / "cache").rglob("config.json"))
    hub.faults.clear()
    assert fk.load("org/repo").basis == "estimate"


def test_progress_tells_what_and_how_much(hub: Hub) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2))
    told: list[tuple[str, int]] = []
    fk.load("org/repo", progress=lambda place, moved: told.append((place, moved)))
    assert told[-1][1] == hub.sent
    assert sorted(moved for _, moved in told) == [moved for _, moved in told]
    assert "org/repo/config.json" in {place for place, _ in told}


def test_a_link_out_of_the_cache_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1))
    fk.load("org/repo")
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(LLAMA))
    config = next((tmp_path / "cache").rglob("config.json"))
    config.unlink()
    config.symlink_to(secret)
    with pytest.raises(fk.BadInput, match="leads out of"):
        fk.load("org/repo", online=False)
    with pytest.raises(fk.BadInput, match="leads out of"):
        fk.load(config.parent)


def test_a_cache_that_cannot_be_written_is_no_error(hub: Hub, tmp_path: Path) -> None:
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 1))
    (tmp_path / "cache").write_text("a file where a directory should be")
    assert fk.load("org/repo").basis == "estimate"


REAL = """
import sys
import huggingface_hub as real
import fitkit as fk
assert "huggingface_hub.hf_api" not in sys.modules
if sys.argv[1] == "ours first":
    model = fk.load("org/repo")
    path = real.hf_hub_download("org/repo", "config.json", local_files_only=True)
    assert real.scan_cache_dir().size_on_disk > 0 and not real.scan_cache_dir().warnings
else:
    path = real.hf_hub_download("org/repo", "config.json")
    model = fk.load("org/repo", online=False)
    assert model.basis == "arch"
    model = fk.load("org/repo")
info = real.HfApi().model_info("org/repo", files_metadata=True)
tree = {one.path: one.size for one in real.HfApi().list_repo_tree("org/repo")}
assert model.revision == info.sha and {one.rfilename: one.size for one in info.siblings} == tree
print(model.basis, model.file_bytes, path)
"""


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_the_real_client_and_this_one_agree_on_server_and_cache(hub: Hub, tmp_path: Path, order: str) -> None:
    """HF_ENDPOINT is read when huggingface_hub is imported, so the two meet in a process of their own."""
    hub.put("org/repo", sharded(LLAMA, llama_tensors(), 2))
    given = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_XET": "1",
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))} | given
    done = subprocess.run([sys.executable, "-c", REAL, order], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"estimate {header_of(llama_tensors())[1]} ")


def test_addresses_are_shown_without_secrets() -> None:
    assert network.shown("https://me:secret@host/a\nb.gguf?Signature=secret") == "https://host/ab.gguf"
