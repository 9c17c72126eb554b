"""What the page says and draws, without a browser."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

import fitkit as fk
from fitkit.views import controls, html, rows
from fitkit.views.chips import chips
from fitkit.views.state import State, from_plan, from_query

pytest.importorskip("anywidget")


def test_specs_are_what_the_charts_say() -> None:
    charts = pytest.importorskip("fitkit.views.charts")
    assert json.loads((files("fitkit.views") / "specs.json").read_text()) == json.loads(json.dumps(charts.specs()))


def test_the_address_brings_a_question_back() -> None:
    asked = State(
        context=32768, machines=("2x RTX 3090", "1x 48 GiB"), lead="1x 48 GiB", kv="q8_0", taken=1.5, gpus="2"
    )
    found, errors = State().read(from_query(asked.query()))
    assert (found, errors) == (asked, {})
    assert State().query() == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("context", -1), ("context", "nan"), ("context", "1e9"), ("parallel", 0), ("parallel", 1.5), ("util", 7), ("machines", ["9x foo"]),
     ("quant", "Q9"), ("rules", "__import__"), ("kv", {}), ("taken", "inf"), ("gpus", "-1"), ("machines", ["1x RTX 4090"] * 2 + [f"{n}x H100" for n in range(1, 20)])],
)  # fmt: skip
def test_a_value_that_cannot_be_is_one_sentence_and_the_old_one_stays(name: str, value: object) -> None:
    found, errors = State().read({name: value})
    assert found == State()
    assert list(errors) == [name]
    assert "\n" not in errors[name]
    assert len(errors[name]) < 250


@pytest.mark.parametrize(
    ("typed", "tokens"), [("8,192", 8192), ("32k", 32768), (" 1 000 ", 1000), ("1M", 1048576), (4096.0, 4096)]
)
def test_numbers_are_read_as_people_type_them(typed: object, tokens: int) -> None:
    assert State().read({"context": typed})[0].context == tokens


def test_context_stops_end_at_the_models_own_length() -> None:
    assert controls.contexts(40960) == [1024, 2048, 4096, 8192, 16384, 32768, 40960]
    assert controls.contexts(131072)[-2:] == [65536, 131072]
    assert controls.contexts(512) == [512]


def test_engine_and_rules_are_brought_in_line_with_the_newest_choice() -> None:
    start = State()
    budget = controls.settle(State(rules="budget"), None, start)
    assert (budget.engine, budget.util) == ("vllm", 0.9)
    back = controls.settle(State(rules="budget", engine="llama.cpp", util=0.9), None, budget)
    assert (back.rules, back.engine, back.util) == ("engine", "llama.cpp", 0.92)
    assert controls.settle(State(engine="vllm"), None, start).quant == "BF16"
    assert controls.settle(State(engine="vllm", quant="FP8", kv="q8_0"), None, start).kv == "f16"


def test_every_text_from_outside_is_escaped() -> None:
    evil = "<img src=x onerror=alert(1)>"
    assert "<img" not in html.broken(evil) + html.command(evil) + html.heat_legend(evil) + html.chip(evil, model=evil)


def test_page_answers_and_refuses_without_losing_the_last_answer() -> None:
    import fitkit as fk

    page = fk.dashboard(rules="library", machines=["1x RTX 4090", "8x H100 80GB"])
    page.answer_rest()
    said = page.status
    assert said.startswith("Fits on 1× RTX 4090 · 4 requests at a time. 9.08 GiB of 21.60 GiB")
    assert set(page.rest_slots) >= {"chips", "matrix", "others", "known"}
    assert json.loads(page.rows_heat)
    assert json.loads(page.rows_lines)
    bars = json.loads(page.rows_memory)
    assert sum(bar["gib"] for bar in bars if bar["machine"] == "1x RTX 4090") == pytest.approx(9.0828, abs=1e-3)
    verdict = page.slots["verdict"]
    page._hear(None, {"kind": "set", "state": {**page.state, "context": "999999"}}, None)
    assert page.errors == {
        "context": "A context of 999,999 tokens is more than the 131,072 that llama-3.1-8b was made for."
    }
    assert page.slots["verdict"] == verdict
    page._hear(None, {"kind": "set", "state": {**page.state, "context": 8192, "model": "<script>"}}, None)
    assert "Unknown model" in page.errors["model"]
    assert page.state["model"] == "llama-3.1-8b"


def test_a_plan_saved_on_the_page_is_fks_own_and_brings_the_question_back() -> None:
    import fitkit as fk

    page = fk.dashboard(rules="library", context=16384, parallel=2, lead="2x RTX 3090")
    sent: list[dict[str, str]] = []
    page.send = sent.append
    page._hear(None, {"kind": "save", "what": "plan"}, None)
    plan = fk.Plan.from_json(sent[-1]["text"])
    assert (plan.machine, plan.context, plan.parallel) == ("2x RTX 3090", 16384, 2)
    found, errors = State().read(from_plan(sent[-1]["text"], State()))
    assert errors == {}
    assert (found.lead, found.context, found.parallel, found.rules) == ("2x RTX 3090", 16384, 2, "library")


def test_a_served_page_opens_no_file_for_a_visitor(tmp_path: object) -> None:
    import fitkit as fk

    page = fk.dashboard(rules="library")
    page.asker.free = False
    page._hear(None, {"kind": "set", "state": {**page.state, "model": str(tmp_path)}}, None)
    assert "Unknown model" in page.errors["model"]


def test_memory_axis_rows_and_chips_follow_the_tables() -> None:
    import fitkit as fk

    frame = fk.fit("llama-3.1-70b", ["1x RTX 4090"], "Q4_K_M", parallel=4, rules="library")
    found = html.records(frame)
    assert html.verdict_of(found[0]) == "no"
    assert rows.heat(found, [1, 2])[0]["mark"] == "✗"
    offered = chips(State(model="llama-3.1-70b"), fk.suggest(frame.iloc[0]))
    assert len(offered) >= 2
    for _, changes in offered:
        assert State().read(changes)[1] == {}


def test_unknown_setting_of_the_page_is_named() -> None:
    import fitkit as fk

    with pytest.raises(fk.UnknownName, match="contxt"):
        fk.dashboard(contxt=8192)
    with pytest.raises(fk.BadInput, match="tokens"):
        fk.dashboard(context=0)


def test_a_new_model_opens_with_its_own_quantization() -> None:
    start = State()
    new = State(model="gpt-oss-120b")
    model = fk.load("gpt-oss-120b")
    assert controls.settle(new, model, start).quant == "MXFP4_MOE"
    assert controls.settle(new, model, start, {"model", "quant"}).quant == "Q4_K_M"
    back = controls.settle(State(quant="MXFP4_MOE"), fk.load("llama-3.1-8b"), controls.settle(new, model, start))
    assert back.quant == "Q4_K_M"
    assert "quant=Q4_K_M" in new.query()


@pytest.mark.parametrize(
    "question",
    [{}, {"lead": "2x RTX 3090", "context": 32768, "parallel": 8}, {"engine": "vllm", "quant": "BF16", "lead": "2x RTX 3090"},
     {"rules": "library", "lead": "2x RTX 3090", "context": 32768}, {"rules": "budget", "engine": "vllm", "quant": "BF16"}],
)  # fmt: skip
def test_the_parts_of_the_verdict_sum_to_what_it_needs(question: dict[str, object]) -> None:
    page = fk.dashboard(**question)
    frame = page.asker.rows(page.question)
    row = frame[frame["machine"] == page.question.lead].iloc[0]
    sums = re.search(r'fk-sum">(.*?)</div>', page.slots["verdict"])[1]
    before, _, after = re.sub("<[^>]+>", "", sums).partition(" = ")
    parts = [float(one) for one in re.findall(r"([\d.]+) GiB", before)]
    total = float(re.match(r"([\d.]+) GiB", after)[1])
    assert len(parts) == 3
    assert round(sum(parts), 2) == total == round(row["need_per_gpu_bytes"] / 2**30, 2)
    assert f"{total:.2f} GiB of" in page.slots["verdict"]  # the sentence says the same figure
    if row["engine"] == "llama.cpp" and row["rules"] == "engine":
        assert after.endswith(f"+ {row['host_bytes'] / 2**30:.2f} GiB in RAM")
    assert ("on the fullest of 2 cards" in sums) == (row["fit_gpus"] == 2)


def test_rounded_parts_sum_to_the_rounded_sum() -> None:
    third = round(2**30 / 3)
    assert html.gib_parts([third, third, third]) == ["0.34 GiB", "0.33 GiB", "0.33 GiB"]
    assert html.gib_parts([]) == []
    assert html.gib_parts([60 * 2**30, 50 * 2**30]) == ["60.00 GiB", "50.00 GiB"]


def test_a_launch_line_under_a_no_says_that_it_would_fail() -> None:
    yes, no = fk.dashboard(), fk.dashboard(context=131072)
    assert "fk-warn" not in yes.slots["command"]
    assert yes.copied == "Copied"
    assert "This does not fit: the line would fail." in no.slots["command"]
    assert 'class="fk-fails"' in no.slots["command"]
    assert "would fail" in no.copied
    assert no.command.startswith("llama-server")


def test_tables_say_which_columns_are_of_all_cards_and_put_the_verdict_first() -> None:
    page = fk.dashboard()
    page.answer_rest()
    for text in (page.slots["table"], page.rest_slots["others"]):
        assert "all cards and RAM" in text
        heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', text)
        assert heads[1] == "Verdict"
        body = text.split("<tbody>")[1]
        for line in re.findall(r"<tr.*?</tr>", body):
            spans = [int(n) for n in re.findall(r'colspan="(\d+)"', line)]
            assert len(re.findall(r"<t[dh]", line)) - len(spans) + sum(spans) == len(heads)
    assert " GB<" not in page.rest_slots["matrix"]  # weights in memory are GiB, as the glossary says


def _visited(query: str) -> fk.Dashboard:
    page = fk.dashboard()
    page.answer_rest()
    page._hear(None, {"kind": "asked", "query": query}, None)
    return page


@pytest.mark.parametrize(
    ("query", "control"),
    [("model=nonsense", "model"), ("ctx=-4", "context"), ("machine=foo", "machines"), ("lead=foo", "machines"), ("engine=vllm&quant=Q2_K", "quant"),
     ("kv=fp8", "kv"), ("model=qwen3-32b&ctx=131072", "context")],
)  # fmt: skip
def test_what_a_link_asks_in_vain_is_said_beside_its_control(query: str, control: str) -> None:
    page = _visited(query)
    assert list(page.errors) == [control]
    assert page.errors[control].startswith("Left out of the link: ")
    assert not page.stale  # the answer is the one to what the controls show
    assert "fk-answer-line" in page.slots["verdict"]


def test_a_link_of_the_page_itself_is_taken_over_whole() -> None:
    for question in ({"engine": "vllm", "quant": "BF16", "kv": "fp8"}, {"rules": "budget", "util": 0.8}, {"model": "gpt-oss-120b", "context": 32768}):  # fmt: skip
        asked = fk.dashboard(**question).question
        page = _visited(asked.query())
        assert (page.errors, page.question) == ({}, asked)


def test_more_gpus_asked_than_there_are_is_said_on_the_bar_and_no_bar_is_drawn() -> None:
    page = fk.dashboard(gpus="2", machines=["1x RTX 4090", "2x RTX 3090"])
    limits = {one["machine"]: one for one in json.loads(page.rows_limits)}
    assert limits["1x RTX 4090"]["said"] == "asked for 2 GPUs, has 1"
    assert "usable" in limits["2x RTX 3090"]["said"]
    assert {bar["machine"] for bar in json.loads(page.rows_memory)} == {"2x RTX 3090"}
    assert "fullest" not in page.slots["verdict"]
    page.answer_rest()
    assert {cell["verdict"] for cell in json.loads(page.rows_heat)} == {"no"}
    assert json.loads(page.rows_lines) == []
    assert "longest context" not in page.slots["verdict"]
    straddles = {
        "limited_by": "gpus",
        "fits": False,
        "fit_gpus": 2,
        "per_gpu_low_bytes": 1,
        "per_gpu_high_bytes": 3,
        "usable_per_gpu_bytes": 2,
    }
    assert html.verdict_of(straddles) == "no"
    assert html.verdict_of({**straddles, "limited_by": "kv_cache"}) == "close"


def test_no_part_of_the_page_keeps_the_answer_of_the_question_before(monkeypatch: pytest.MonkeyPatch) -> None:
    page = fk.dashboard(machines=["1x RTX 4090"])
    page.answer_rest()
    assert "fk-chip" in page.rest_slots["chips"]

    def refuse(*_: object) -> object:
        raise fk.BadInput("no")

    monkeypatch.setattr(page.asker, "suggested", refuse)
    monkeypatch.setattr(page.asker, "others", refuse)
    page._hear(None, {"kind": "set", "state": {**page.state, "context": 16384}}, None)
    page.answer_rest()
    assert "fk-chip" not in page.rest_slots["chips"]
    assert "table" not in page.rest_slots["others"]
    page._hear(None, {"kind": "set", "state": {**page.state, "machines": []}}, None)
    page.answer_rest()
    assert "table" not in page.rest_slots["matrix"]
    assert page.rows_heat == "[]"


def test_a_refused_move_does_not_cut_off_the_rest_of_the_last_good_answer() -> None:
    page = fk.dashboard()
    page._hear(None, {"kind": "set", "state": {**page.state, "context": "999999"}}, None)
    assert page.stale
    page.answer_rest()
    assert "table" in page.rest_slots["matrix"]
