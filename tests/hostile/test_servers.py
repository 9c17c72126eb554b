"""Servers that lie: each is refused with its address within a second (a silent one within the time-out), in bounded memory."""

from __future__ import annotations

import gzip
import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, TOKEN, File, Handler, Hub

import fitkit as fk
from fitkit.sources import shards, wire
from fitkit.sources.json_text import MOST_VALUES, strict_json

MOST_SECONDS, MOST_BYTES = 1.0, 64 * 2**20
CONFIG = f"/org/repo/resolve/{COMMIT}/config.json"
WEIGHTS = "/cdn/org/repo//model.safetensors"
INFO = "/api/models/org/repo"
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "intermediate_size": 96,
}
TENSORS = json.dumps({"w": {"dtype": "BF16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
SAFETENSORS = struct.pack("<Q", len(TENSORS)) + TENSORS

Fault = Callable[[Handler], None]


def raw(*lines: str, body: bytes = b"", repeat: int = 1) -> Fault:
    """An answer written by hand; its body `repeat` times over, until the client hangs up."""

    def answer(handler: Handler) -> None:
        handler.wfile.write("\r\n".join((*lines, "", "")).encode())
        for _ in range(repeat):
            handler.write(body)

    return answer


def redirect(where: str, status: int = 302) -> Fault:
    return lambda handler: handler.answer(status, b"", {"Location": where})


def chunked(body: bytes, times: int) -> Fault:
    piece = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    return raw("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=piece, repeat=times)


def ranged(said: str, body: bytes, **more: str) -> Fault:
    """A 206 that says what it likes."""
    return lambda handler: handler.answer(
        206, body, {"Content-Range": said, **{name.replace("_", "-"): one for name, one in more.items()}}
    )


def silent(handler: Handler) -> None:
    time.sleep(1.5)


def dripping(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(40):
        handler.write(b"x")
        time.sleep(0.1)


BOMB = gzip.compress(bytes(10**8))
ZEROES = bytes(2**20)

# What goes wrong: where, how, and what the refusal names.
FAULTS: dict[str, tuple[str, Fault, str]] = {
    "a listing without end": (INFO, chunked(ZEROES, 10_000), "sends more than"),
    "a listing that says it is huge": (INFO, raw("HTTP/1.1 200 OK", "Content-Length: 999999999999", body=b"{}"), "would send 999,999,999,999"),
    "a listing of a negative length": (INFO, raw("HTTP/1.1 200 OK", "Content-Length: -5", body=b"{}"), INFO),
    "a listing that is no JSON": (INFO, lambda h: h.answer(200, b"<html>busy</html>", {}), "no JSON"),
    "a listing of nothing": (INFO, lambda h: h.answer(200, b"{}", {}), "no commit"),
    "a listing that is a list": (INFO, lambda h: h.answer(200, b"[]", {}), "no commit"),
    "a listing nested without end": (INFO, lambda h: h.answer(200, b"[" * 10**5, {}), "no JSON"),
    "a listing of millions of values": (INFO, lambda h: h.answer(200, b"[" + b"[]," * 2_000_000 + b"0]", {}), "values"),
    "a commit that leads elsewhere": (INFO, lambda h: h.answer(200, json.dumps({"sha": "../../etc", "siblings": []}).encode(), {}), "no commit"),
    "a file that leads elsewhere": (INFO, lambda h: h.answer(200, json.dumps({"sha": "a", "siblings": [{"rfilename": "../config.json"}]}).encode(), {}), "no file of a repository"),
    "a file of a negative size": (INFO, lambda h: h.answer(200, json.dumps({"sha": "a", "siblings": [{"rfilename": "a.gguf", "size": -1}]}).encode(), {}), "-1 bytes"),
    "a file of no size": (INFO, lambda h: h.answer(200, b'{"sha":"a","siblings":[{"rfilename":"a.gguf","size":NaN}]}', {}), "NaN"),
    "a redirect to itself": (INFO, redirect(INFO), "redirects"),
    "a redirect in a circle": (INFO, lambda h: h.answer(302, b"", {"Location": f"{INFO}?{h.path.count('x') * 'x'}x"}), "redirects more than 5 times"),
    "a redirect to a file": (INFO, redirect("file:///etc/passwd"), "redirects to file"),
    "a redirect to another protocol": (INFO, redirect("ftp://host/x"), "redirects to ftp://host/x"),
    "a redirect to no address": (INFO, redirect("http://[::x/"), INFO),
    "a redirect without an address": (INFO, lambda h: h.answer(302, b"", {}), "redirects"),
    "a status that is none": (INFO, raw("HTTP/1.1 999 Odd", "Content-Length: 0"), INFO),
    "no HTTP at all": (INFO, raw("SSH-2.0-OpenSSH_9.9"), INFO),
    "headers without end": (INFO, raw("HTTP/1.1 200 OK", body=b"X-A: " + b"a" * 1000 + b"\r\n", repeat=100_000), INFO),
    "a compressed config": (CONFIG, lambda h: h.answer(200, BOMB, {"Content-Encoding": "gzip"}), "sends gzip"),
    "a config compressed by an unknown way": (CONFIG, lambda h: h.answer(200, BOMB, {"Content-Encoding": "zs\x7ftd"}), "config.json"),
    "a config of zeroes": (CONFIG, chunked(ZEROES, 10_000), "sends more than"),
    "a config that is not UTF-8": (CONFIG, lambda h: h.answer(200, b'{"model_type": "\xff"}', {}), "not UTF-8"),
    "a config with a key twice": (CONFIG, lambda h: h.answer(200, b'{"model_type": "llama", "model_type": "gpt2"}', {}), "there twice"),
    "a config that is a list": (CONFIG, lambda h: h.answer(200, b"[]", {}), "a mapping was expected"),
    "weights without ranges, streamed for ever": (WEIGHTS, chunked(ZEROES, 10_000), "sends whole files"),
    "weights without ranges": (WEIGHTS, raw("HTTP/1.1 200 OK", "Content-Length: 99999999999", body=ZEROES, repeat=10_000), "sends whole files"),
    "more than the range": (WEIGHTS, raw("HTTP/1.1 206 Partial Content", "Content-Range: bytes 0-32767/99999", body=ZEROES, repeat=10_000), "sends more than"),
    "another range": (WEIGHTS, ranged("bytes 5-9/100", b"12345"), "where 0-99 was asked for"),
    "a range that is none": (WEIGHTS, ranged("bytes all of it", SAFETENSORS), "which is none"),
    "a range of unknown size": (WEIGHTS, ranged("bytes 0-9/*", SAFETENSORS), "which is none"),
    "a range larger than files get": (WEIGHTS, ranged("bytes 0-32767/" + "9" * 40, SAFETENSORS), "which is none"),
    "a file of an exabyte": (WEIGHTS, ranged("bytes 0-32767/" + "9" * 18, bytes(32768)), "more than any model's"),
    "a range cut short": (WEIGHTS, ranged("bytes 0-9/100000", b"0123456789"), "where 0-32767 was asked for"),
    "a range whose body is short": (WEIGHTS, ranged("bytes 0-32767/100000", b"0123456789"), "gave 10 bytes"),
    "a range that is compressed": (WEIGHTS, ranged("bytes 0-32767/100000", BOMB[:100], Content_Encoding="br"), "sends br"),
    "an empty file": (WEIGHTS, lambda h: h.answer(416, b"", {"Content-Range": "bytes */0"}), "0 bytes"),
    "a range refused": (WEIGHTS, lambda h: h.answer(416, b"", {"Content-Range": "bytes */500000"}), "refuses the range"),
    "a header past the end": (WEIGHTS, ranged("bytes 0-15/16", struct.pack("<QQ", 2**60, 0)), "past the end"),
    "a header of gigabytes": (WEIGHTS, ranged("bytes 0-32767/99999999999", struct.pack("<Q", 2**35) + bytes(32760)), "larger than any model"),
    "nothing for ever": (INFO, silent, "sent nothing for 0.3 s"),
    "a config that never comes": (CONFIG, silent, "sent nothing for 0.3 s"),
    "weights that never come": (WEIGHTS, silent, "sent nothing for 0.3 s"),
    "a byte now and then": (CONFIG, dripping, "did not end within 0.9 s"),
}  # fmt: skip


def sound(hub: Hub) -> None:
    weights = File(SAFETENSORS, len(SAFETENSORS) + 2000, lfs=True)
    hub.put("org/repo", {"config.json": File(json.dumps(LLAMA).encode()), "model.safetensors": weights})


@pytest.mark.parametrize("name", FAULTS)
def test_a_hostile_server_is_refused(hub: Hub, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, fault, said = FAULTS[name]
    sound(hub)
    hub.faults[place] = fault
    monkeypatch.setattr("time.sleep", time.sleep if "sent nothing" in said or "did not end" in said else lambda _: None)
    fk.load(LLAMA)  # what is imported on first use is not the server's doing
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(fk.FitError) as caught:
            fk.load("org/repo", timeout=0.3 if "sent nothing" in said or "did not end" in said else 10)
    finally:
        spent, peak = time.monotonic() - started, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    message = str(caught.value)
    assert said in message
    assert message.isprintable()
    assert len(message) < 500
    assert peak < MOST_BYTES + len(BOMB)
    assert spent < 10 * MOST_SECONDS  # tracemalloc, the server and whatever else runs are in it: this tells what hangs
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    good = hub.repositories["org/repo"].files["config.json"].head
    # a config that is JSON and no model's is the repository's own; what is none is not kept
    assert all("refs" in path.parts or path.read_bytes() in (good, b"[]") for path in kept)


def test_a_token_does_not_follow_a_redirect(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    sound(hub)
    hub.faults[INFO] = redirect(hub.cdn.replace("127.0.0.1", "localhost") + "/elsewhere")
    with pytest.raises(fk.FetchError, match=r"/elsewhere .*404"):
        fk.load("org/repo")
    assert [one.authorization for one in hub.asked] == [f"Bearer {TOKEN}", ""]


def test_a_file_that_changes_between_ranges_is_told(hub: Hub) -> None:
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q", 21)
        + b"tokenizer.ggml.tokens"
        + struct.pack("<IIQ", 9, 8, 10**5)
    )
    head += (struct.pack("<Q", 10) + b"0123456789") * 10**5
    for number, change in enumerate(
        (lambda file: setattr(file, "etag", "another"), lambda file: setattr(file, "size", file.size + 1))
    ):
        file = File(head, len(head) + 64, lfs=True)
        hub.put("org/repo", {"m.gguf": file})
        seen: list[int] = []

        def progress(
            _: str, moved: int, seen: list[int] = seen, file: File = file, change: Callable[[File], None] = change
        ) -> None:
            if moved > 2**19 and not seen:
                seen.append(moved)
                change(file)

        with pytest.raises(fk.FetchError, match="changed while it was read"):
            fk.load("org/repo", progress=progress)
        assert seen, number


def test_a_signed_address_that_ran_out_is_asked_for_again(hub: Hub) -> None:
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 2)
        + struct.pack("<Q", 20)
        + b"general.architecture"
        + struct.pack("<IQ", 8, 4)
        + b"none"
    )
    head += (
        struct.pack("<Q", 21)
        + b"tokenizer.ggml.tokens"
        + struct.pack("<IIQ", 9, 8, 10**5)
        + (struct.pack("<Q", 10) + b"0123456789") * 10**5
    )
    hub.put("org/repo", {"m.gguf": File(head, len(head) + 64, lfs=True)})
    done: list[int] = []

    def progress(place: str, moved: int) -> None:
        if moved > 2**19 and not done:
            done.append(moved)
            hub.failing["/cdn/org/repo//m.gguf"] = [(403, {})]

    with pytest.raises(fk.UnsupportedModel, match="none"):
        fk.load("org/repo", progress=progress)
    assert done
    assert sum("/resolve/" in path for path in hub.paths()) == 2


def test_one_load_has_a_budget(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_MOVED_BYTES", 2000)
    sound(hub)
    with pytest.raises(fk.FetchError, match="past 2,000 bytes"):
        fk.load("org/repo")


def test_an_index_that_points_elsewhere_is_refused(hub: Hub) -> None:
    sound(hub)
    files = hub.repositories["org/repo"].files
    for name, said in (
        ("../../x.safetensors", "no file name"),
        ("other.safetensors", "not in the repository"),
        (7, "no file name"),
    ):
        files["model.safetensors.index.json"] = File(json.dumps({"weight_map": {"w": name}}).encode())
        hub.repositories["org/repo"].commit = f"c{len(said)}{name}".replace("/", "").replace(".", "")
        with pytest.raises(fk.BadInput, match=said):
            fk.load("org/repo")


@pytest.mark.parametrize("name", ["<script>alert(1)</script>.gguf", "a\nb\x1b[2J.gguf", "‮fgu.gguf"])
def test_names_are_fit_for_a_line(hub: Hub, name: str) -> None:
    hub.put(
        "org/repo", {name: File(b"GGUF" + bytes(100), lfs=True), "x-Q8_0.gguf": File(b"GGUF" + bytes(100), lfs=True)}
    )
    for source in ("org/repo", f"hf://org/repo/{name}"):
        with pytest.raises(fk.FitError) as caught:
            fk.load(source)
        assert str(caught.value).isprintable()


def test_nothing_in_a_repository_is_run(hub: Hub, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    code = f"open({str(mark)!r}, 'w')".encode()
    config: dict[str, Any] = {
        **LLAMA,
        "auto_map": {"AutoConfig": "configuration.Config"},
        "chat_template": "{{ cycler.__init__.__globals__.os.system('true') }}",
    }
    hub.put(
        "org/repo",
        {"config.json": File(json.dumps(config).encode()), "configuration.py": File(code), "modeling.py": File(code)},
    )
    fk.load("org/repo")
    assert not mark.exists()
    assert not [path for path in hub.paths() if path.endswith(".py")]


# Texts that cost much once they are read; what a value costs does not depend on how many there are.
MANY = 2**16
DENSE = {
    "empty lists": b"[" + b"[]," * (MANY // 2 - 1) + b"0]",
    "empty mappings": b"[" + b"{}," * (MANY // 2 - 1) + b"0]",
    "short keys": b"{" + b",".join(b'"%x":0' % i for i in range(MANY)) + b"}",
    "fractions": b"[" + b"0.5," * (MANY - 1) + b"0]",
    "texts": b"[" + b",".join(b'"%x\xc3\xa9"' % i for i in range(MANY)) + b"]",
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_json_is_bounded(name: str) -> None:
    tracemalloc.start()
    try:
        strict_json(DENSE[name], "dense.json", most_values=MANY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak * (MOST_VALUES // MANY) < 128 * 2**20
    started = time.process_time()
    with pytest.raises(fk.BadInput, match="more than 1,024 values"):
        strict_json(DENSE[name], "dense.json", most_values=1024)
    assert time.process_time() - started < 0.1


def test_more_tensors_than_a_model_has_are_refused_unread(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"w{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(3000)}
    text = json.dumps(entries).encode()
    weights = File(struct.pack("<Q", len(text)) + text, 8 + len(text) + 3000, lfs=True)
    files = {"config.json": File(json.dumps(LLAMA).encode()), "model.safetensors": weights}
    index = File(json.dumps({"weight_map": {"w0": "model.safetensors"}}).encode())
    hub.put("org/listed", {**files, "model.safetensors.index.json": index})
    with pytest.raises(fk.BadInput, match="3,000 tensors, more than its index lists"):
        fk.load("org/listed")
    monkeypatch.setattr(shards, "MOST_UNLISTED", 2999)
    hub.put("org/many", files)
    with pytest.raises(fk.BadInput, match="3,000 tensors, more than any model"):
        fk.load("org/many")
    hub.put("org/files", {"config.json": files["config.json"], **{f"{i}.safetensors": weights for i in range(1025)}})
    with pytest.raises(fk.BadInput, match="1,025 weight files"):
        fk.load("org/files")
