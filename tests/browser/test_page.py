"""The page as a visitor uses it: keyboard, address, clipboard, files, a narrow window, a dark theme, and no internet."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
expect.set_options(timeout=30_000)  # a busy machine is no defect

VERDICT = ".fk-verdict strong"


def press(page: Any, name: str, key: str, times: int) -> Any:
    """Move a slider by its keys."""
    slider = page.get_by_role("slider", name=name, exact=True)
    slider.focus()
    for _ in range(times):
        page.keyboard.press(key)
    return slider


def test_first_visit_opens_on_a_case_that_fits(first: Any) -> None:
    expect(first.page.locator(VERDICT)).to_have_text("Fits on 1× RTX 4090 · 4 requests at a time")
    assert first.page.title() == "Will it fit?"
    assert first.complaints == []


def test_nothing_leaves_loopback(first: Any) -> None:
    assert first.left_loopback == []


def test_context_slider_by_keyboard_changes_verdict_charts_and_address(first: Any) -> None:
    page = first.page
    before = page.locator(".fk-chart-memory svg").inner_html()
    slider = press(page, "Context", "End", 1)
    expect(slider).to_have_attribute("aria-valuetext", "131,072 tokens")
    expect(page.locator(VERDICT)).to_contain_text("Does not fit on 1× RTX 4090")
    expect(page.locator("p[role=status]").first).to_contain_text("Does not fit")
    assert page.locator(".fk-chart-memory svg").inner_html() != before
    assert "ctx=131072" in page.url
    slider = press(page, "Context", "ArrowLeft", 4)
    expect(slider).to_have_attribute("aria-valuetext", "8,192 tokens")
    expect(page.locator(VERDICT)).to_contain_text("Fits on 1× RTX 4090")
    assert "ctx" not in page.url


def test_a_typed_number_that_cannot_be_stands_beside_its_control_and_the_answer_stays(first: Any) -> None:
    page = first.page
    box = page.get_by_label("Context, typed")
    box.fill("9999999")
    box.press("Enter")
    error = page.locator(".fk-field", has=box).locator(".fk-error")
    expect(error).to_contain_text("131,072")
    expect(page.locator(".fk-answer")).to_have_class("fk-answer fk-stale")
    expect(page.locator(VERDICT)).to_contain_text("Fits on 1× RTX 4090")
    box.fill("8,192")
    box.press("Enter")
    expect(error).to_be_hidden()
    expect(page.locator(".fk-answer")).to_have_class("fk-answer")


def test_every_slider_and_list_has_a_name(first: Any) -> None:
    page = first.page
    for name in ("Context", "Requests at once", "GPU memory utilization"):
        expect(page.get_by_role("slider", name=name, exact=True)).to_be_visible()
    for name in ("Quantization", "KV cache type", "Counted as"):
        expect(page.get_by_role("combobox", name=name)).to_be_visible()
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_be_visible()


def test_charts_say_what_they_show(first: Any) -> None:
    label = first.page.locator(".fk-chart-memory[aria-roledescription=visualization]")
    expect(label).to_have_attribute("aria-label", re.compile(r"1x RTX 4090: [\d.]+ GiB of [\d.]+ GiB usable"))


def test_copy_and_csv(first: Any, tmp_path: Any) -> None:
    page = first.page
    page.get_by_role("button", name="Copy the launch command").click()
    expect(page.locator(".fk-note")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()").startswith("llama-server")
    with page.expect_download() as got:
        page.get_by_role("button", name="Download CSV").click()
    got.value.save_as(tmp_path / "fit.csv")
    with (tmp_path / "fit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["machine"] == "1x RTX 4090"
    assert {"weights_bytes", "kv_bytes", "overhead_bytes", "fits", "reason"} <= set(rows[0])


def test_a_saved_plan_brings_its_question_back(first: Any, tmp_path: Any) -> None:
    page = first.page
    press(page, "Requests at once", "ArrowRight", 1)
    expect(page.locator(VERDICT)).to_contain_text("8 requests")
    with page.expect_download() as got:
        page.get_by_role("button", name="Save plan").click()
    got.value.save_as(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["parallel"] == 8
    press(page, "Requests at once", "ArrowLeft", 1)
    expect(page.locator(VERDICT)).to_contain_text("4 requests")
    for content, wanted in (("not a plan", None), ((tmp_path / "plan.json").read_text(), "8 requests")):
        (tmp_path / "given.json").write_text(content)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Load plan").click()
        chooser.value.set_files(tmp_path / "given.json")
        if wanted:
            expect(page.locator(VERDICT)).to_contain_text(wanted)
        else:
            expect(page.locator(".fk-note")).to_contain_text("no JSON")
    press(page, "Requests at once", "ArrowLeft", 1)
    expect(page.locator(VERDICT)).to_contain_text("4 requests")


def test_model_is_found_by_a_few_letters(first: Any) -> None:
    page = first.page
    box = page.get_by_role("combobox", name="Model", exact=True)
    box.click()
    box.fill("qwen3 32b")
    page.keyboard.press("Enter")
    expect(box).to_have_value("qwen3-32b")
    expect(page.locator(".fk-matrix caption")).to_contain_text("qwen3-32b")
    box.fill("<img src=x onerror=alert(1)>")
    box.press("Enter")
    expect(page.locator(".fk-field", has=box).locator(".fk-error")).to_contain_text("Unknown model")
    assert page.locator(".fk img").count() == 0
    box.fill("llama-3.1-8b")
    box.press("Enter")
    expect(page.locator(VERDICT)).to_contain_text("Fits on 1× RTX 4090")


def test_machines_are_added_by_a_count_and_a_name_and_removed(first: Any) -> None:
    page = first.page
    box = page.get_by_role("combobox", name="Add a machine")
    box.focus()
    box.press_sequentially("8x h100")
    page.keyboard.press("Enter")
    added = page.get_by_role("button", name="Remove 8× H100 80GB")
    expect(added).to_be_visible()
    expect(page.locator(VERDICT)).to_contain_text("H100 80GB")
    added.press("Enter")
    expect(added).to_have_count(0)
    page.get_by_role("radio", name="1× RTX 4090").check()
    expect(page.locator(VERDICT)).to_contain_text("Fits on 1× RTX 4090")


def test_address_restores_the_question_on_a_phone_in_the_dark(visit: Any) -> None:
    one = visit(
        "theme=dark&ctx=32768&requests=2&machine=1x+H100+80GB&machine=2x+48GiB&lead=2x+48GiB",
        viewport={"width": 390, "height": 844},
    )
    page = one.page
    summary = page.locator(".fk-summary")
    expect(summary).to_contain_text("32,768 × 2 · 2× 48 GiB")  # the question in one line: the answer comes first
    summary.click()
    expect(page.get_by_role("slider", name="Context", exact=True)).to_have_attribute("aria-valuetext", "32,768 tokens")
    expect(page.locator(VERDICT)).to_contain_text("2 requests at a time")
    expect(page.locator(".fk-matrix thead")).to_contain_text("2× 48 GiB")
    assert page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)") <= 390
    assert page.locator(".fk-controls").bounding_box()["y"] < page.locator(".fk-verdict").bounding_box()["y"]
    page.get_by_role("button", name="Save plan").scroll_into_view_if_needed()
    assert abs(summary.bounding_box()["y"]) < 2  # the question and its mark stay in sight
    expect(summary).to_contain_text("✓")
    light = page.evaluate(
        "getComputedStyle(document.querySelector('.fk')).color.match(/\\d+/g).slice(0, 3).map(Number)"
    )
    assert min(light) > 180
    assert "theme=dark" in page.url
    assert one.complaints == []
    assert one.left_loopback == []


def test_nonsense_in_the_address_is_named_beside_its_control_and_the_defaults_stay(visit: Any) -> None:
    one = visit(
        "model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&ctx=-1&requests=NaN&machine=%3Cb%3E&quant=Q9&util=7&rules=__import__&theme=light"
    )
    expect(one.page.get_by_role("combobox", name="Model", exact=True)).to_have_value("llama-3.1-8b")
    expect(one.page.locator(VERDICT)).to_have_text("Fits on 1× RTX 4090 · 4 requests at a time")
    assert one.page.locator(".fk img").count() == 0
    said = one.page.locator(".fk-error:visible").all_inner_texts()
    assert len(said) == 7
    assert all(text.startswith("Left out of the link: ") for text in said)
    assert any("<img src=x onerror=alert(1)>" in text for text in said)
    expect(one.page.locator(".fk-answer")).to_have_class("fk-answer")  # it is the answer to what the controls show
    assert one.complaints == []


def test_what_belongs_to_the_question_before_is_greyed_until_its_own_answer_is_there(first: Any) -> None:
    page = first.page
    chips = page.locator(".fk-chips")
    expect(chips).not_to_have_class(re.compile("fk-waiting"))
    page.evaluate("""() => {
      const chips = document.querySelector('.fk-chips'), verdict = document.querySelector('.fk-verdict');
      window.seen = [];
      new MutationObserver(() => window.seen.push(chips.classList.contains('fk-waiting'))).observe(verdict, { childList: true });
    }""")
    press(page, "Context", "ArrowRight", 1)
    expect(page.locator(VERDICT)).to_contain_text("4 requests")
    page.wait_for_function("window.seen.length > 0")
    assert page.evaluate("window.seen[0]") is True  # with the new verdict the old chips are grey
    for name in ("chips", "matrix", "others", "known", "chart-heat", "chart-lines"):
        expect(page.locator(f".fk-{name}").first).not_to_have_class(re.compile("fk-waiting"))
    press(page, "Context", "ArrowLeft", 1)


def test_the_line_under_a_no_says_so_and_so_does_copy(first: Any) -> None:
    page = first.page
    press(page, "Context", "End", 1)
    expect(page.locator(".fk-command .fk-warn")).to_have_text("✗ This does not fit: the line would fail.")
    page.get_by_role("button", name="Copy the launch command").click()
    expect(page.locator(".fk-note")).to_contain_text("Copied. ✗ This does not fit")
    press(page, "Context", "ArrowLeft", 4)
    expect(page.locator(".fk-command .fk-warn")).to_have_count(0)


def test_a_first_visit_follows_the_system_and_the_switch_keeps_the_question(visit: Any) -> None:
    one = visit("ctx=16384", color_scheme="dark")
    page = one.page
    ink = "getComputedStyle(document.querySelector('.fk')).color.match(/\\d+/g).slice(0, 3).map(Number)"
    assert min(page.evaluate(ink)) > 180
    page.get_by_role("button", name="Light / dark").click()
    page.wait_for_url(re.compile("theme=light"))
    page.locator(".fk-matrix table").wait_for(timeout=90_000)
    assert max(page.evaluate(ink)) < 100
    slider = page.get_by_role("slider", name="Context", exact=True)
    expect(slider).to_have_attribute("aria-valuetext", "16,384 tokens")
    assert one.complaints == []


def test_the_controls_stay_beside_a_scrolled_answer_and_the_verdict_of_a_table_in_sight(visit: Any) -> None:
    page = visit().page
    page.locator(".fk-others table").wait_for()
    page.locator(".fk-chart-heat").evaluate("node => node.scrollIntoView()")
    page.wait_for_function("Math.abs(document.querySelector('.fk-controls').getBoundingClientRect().y) < 2")
    page.set_viewport_size({"width": 800, "height": 900})
    for name in ("others", "table"):
        page.wait_for_function(
            f"document.querySelector('.fk-{name} .fk-verdict-cell').getBoundingClientRect().right < 500"
        )


def test_a_kernel_may_be_ended_by_its_tab(visit: Any, served: str) -> None:
    page = visit().page
    kernel = json.loads(page.locator("#jupyter-config-data").inner_text())["kernelId"]
    proof = page.evaluate("document.cookie.match(/_xsrf=([^;]+)/)[1]")  # what Voilà's beacon sends when the tab closes
    address = f"{served}voila/api/shutdown/{kernel}"
    assert page.request.post(address).status == 403
    assert page.request.post(address, form={"_xsrf": proof}).status == 204
