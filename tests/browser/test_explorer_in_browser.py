"""The explorer in headless Chromium: from clicks to certified answers, by mouse and by keyboard."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

import certimap as cm  # noqa: E402

PATIENCE = 30_000  # milliseconds, on the busiest machine
FINDINGS = {"HRBP": "HIGH", "BP": "LOW", "CVP": "HIGH"}
SAID = "It is proved that no other assignment is more probable than this one."


def hard() -> cm.MarkovNetwork:
    """A frustrated grid that no search settles within the patience of a test."""
    rng, side = np.random.default_rng(5), 40
    domain = cm.Domain([cm.Categorical(f"x{i}", ("a", "b", "c")) for i in range(side * side)])
    factors = []
    for i in range(side * side):
        pairs = [i + step for step, inside in ((1, (i + 1) % side), (side, i + side < side * side)) if inside]
        factors += [cm.Factor([i, j], np.exp(3.0 * rng.normal(size=(3, 3)))) for j in pairs]
    return cm.MarkovNetwork(domain, factors)


def mixture() -> cm.GaussianMixture:
    means = [[170.0, 65.0, 30.0], [182.0, 84.0, 45.0], [160.0, 55.0, 60.0]]
    spreads = [np.diag([30.0, 40.0, 60.0]), np.diag([40.0, 60.0, 80.0]), np.diag([20.0, 30.0, 70.0])]
    return cm.GaussianMixture([0.5, 0.3, 0.2], means, spreads, ["height", "weight", "age"])


@pytest.fixture(scope="module")
def models(examples: Path) -> Any:
    path = str(examples / "alarm.bif")
    opened = {"alarm": cm.explore(cm.read(path), path=path)}
    yield opened
    for served in opened.values():
        served.stop()


def opened(browser: Any, served: Any, **how: Any) -> Any:
    """Open a page that fails its test if anything is fetched from elsewhere, or goes wrong."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, "locale": "en-US", **how})
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.problems = []
    page.on("console", lambda m: page.problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    own = (served.url, "data:", "blob:")
    page.on("request", lambda request: None if request.url.startswith(own) else page.problems.append(request.url))
    page.goto(served.url)
    page.wait_for_selector("html[data-drawn]", state="attached")
    return page


@pytest.fixture
def page(browser: Any, models: Any) -> Any:
    shown = opened(browser, models["alarm"])
    answered(shown)
    yield shown
    assert shown.problems == []
    shown.context.close()


def answered(page: Any) -> float:
    """Wait for an answer; return the milliseconds since the click, by the browser's clock."""
    page.wait_for_selector("html[data-answered]", state="attached")
    return float(
        page.evaluate(
            "() => { const d = document.documentElement.dataset, x = d.answered; delete d.answered; return x; }"
        )
    )


def find(page: Any, name: str) -> None:
    page.fill("#search", name)
    page.keyboard.press("Enter")


def state(page: Any, name: str, label: str) -> Any:
    return page.locator(f"article[aria-label={name}] .state", has=page.locator(f".label[title='{label}']"))


def observe(page: Any, name: str, label: str) -> float:
    find(page, name)
    state(page, name, label).click()
    return answered(page)


def told(page: Any) -> dict[str, str]:
    """Return the best answer as the page shows it."""
    rows = page.locator("#answer tbody tr")
    return dict(rows.evaluate_all("rows => rows.map(r => [r.cells[0].innerText, r.cells[1].innerText])"))


def test_three_findings_are_answered_undone_and_asked_again_in_a_shell(
    page: Any, models: Any, tmp_path: Path
) -> None:
    network = cm.read(models["alarm"]._path)
    for name, label in FINDINGS.items():
        observe(page, name, label)
    assert page.inner_text("#said") == SAID
    result = cm.map_query(network, None, FINDINGS, rng=0)
    assert told(page) == result.assignment
    assert page.locator("#chips .seen").all_inner_texts() == [f"{n} = {s} ✕" for n, s in FINDINGS.items()]
    tpr = page.locator("article[aria-label=TPR] .mark")
    assert "alone, LOW is more probable" in tpr.get_attribute("title")
    page.click("#share")
    command = page.inner_text("#shell")
    page.keyboard.press("Escape")
    shell = command.replace("certimap", f"{sys.executable} -m certimap.cli", 1)
    printed = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert f"(ln p = {result.log_prob:.6f})" in printed
    page.click("#undo")
    answered(page)
    assert page.locator("#chips .seen").count() == 2
    assert told(page) == cm.map_query(network, None, dict(list(FINDINGS.items())[:2]), rng=0).assignment
    page.click("#redo")
    answered(page)
    assert told(page) == result.assignment
    times = [observe(page, "CVP", "HIGH") for _ in range(10)]
    print(f"answers {min(times):.0f} to {max(times):.0f} ms after the click")
    assert min(times) < 5000.0


def test_the_keyboard_suffices(page: Any) -> None:
    page.locator("#search").focus()
    page.keyboard.type("hrbp")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    answered(page)
    assert page.locator("#chips .seen").all_inner_texts() == ["HRBP = NORMAL ✕"]
    page.keyboard.press("ArrowLeft")
    answered(page)
    assert page.locator("#chips .seen").all_inner_texts() == ["HRBP soft: 1 : 0.9 : 1 ✕"]
    page.keyboard.press("Control+z")
    answered(page)
    page.keyboard.press("Control+z")
    answered(page)
    assert page.locator("#chips .seen").count() == 0
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")  # the options of the card
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.locator("#options input[name=ask]").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    answered(page)
    assert list(told(page)) == ["HRBP"]


def test_a_drag_gives_soft_evidence_and_the_options_intervene(page: Any) -> None:
    find(page, "HYPOVOLEMIA")
    box = state(page, "HYPOVOLEMIA", "TRUE").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    answered(page)
    (chip,) = page.locator("#chips .seen").all_inner_texts()
    assert re.fullmatch(r"HYPOVOLEMIA soft: 0\.\d+ : 1 ✕", chip)
    page.click("article[aria-label=HYPOVOLEMIA] .name")
    page.locator("#options input[name=do][value='0']").check()
    page.click("#options button[value=apply]")
    answered(page)
    assert page.locator("#chips .done").all_inner_texts() == ["do HYPOVOLEMIA = TRUE ✕"]
    page.locator("summary", has_text="Constraints").click()
    page.fill("#rule-text", "STROKEVOLUME=LOW")
    page.click("#rule button")
    answered(page)
    assert told(page)["STROKEVOLUME"] != "LOW"
    assert "satisfies the constraints" in page.inner_text("#said")


def test_several_answers_and_their_reasons(page: Any) -> None:
    observe(page, "HRBP", "HIGH")
    page.fill("#top_k", "3")
    page.keyboard.press("Tab")
    answered(page)
    assert page.locator("#answer thead th").count() == 5
    assert page.locator("#answer td.differs").count() >= 2
    page.click("#explain")
    page.wait_for_selector("#found h3")
    assert "times as probable as the next best" in page.inner_text("#found")
    page.click("#next")
    assert "Choose what you ask about" in page.inner_text("#found")
    with page.expect_download() as saved:
        page.click("#report")
    assert "<!DOCTYPE html>" in Path(saved.value.path()).read_text(encoding="utf-8")


def test_stop_keeps_the_bounds_and_nothing_is_drawn_anew(browser: Any) -> None:
    served = cm.explore(hard(), path="hard.uai")
    try:
        page = opened(browser, served)
        page.fill("#time_limit", "1000")
        page.keyboard.press("Tab")
        page.evaluate("for (const card of document.querySelectorAll('.state')) card.mine = true")
        page.locator("#said", has_text="Searching: this is the best so far").wait_for()
        page.locator(".state.best").first.wait_for(state="attached")
        page.click("#stop")
        answered(page)
        assert "The proof that was asked for is missing" in page.inner_text("#said")
        assert re.fullmatch(r"joint value from \S+ to \S+", page.inner_text("#bounds"))
        assert page.locator("#said").inner_text() != "Stopped before there was an answer"
        assert page.evaluate("[...document.querySelectorAll('.state')].every(card => card.mine)")
        assert page.problems == []
        page.context.close()
    finally:
        served.stop()


def test_numbers_are_lists_with_histograms_in_the_language_of_the_browser(browser: Any) -> None:
    served = cm.explore(mixture(), path="people.npz")
    try:
        page = opened(browser, served, locale="de-DE")
        answered(page)
        page.wait_for_selector("article[aria-label=height] rect")
        page.fill("article[aria-label=weight] input", "84,5")
        page.keyboard.press("Tab")
        answered(page)
        assert page.locator("#chips .seen").all_inner_texts() == ["weight = 84,5 ✕"]
        assert abs(float(told(page)["height"].replace(",", ".")) - 182.0) < 2.0
        box = page.locator("article[aria-label=age] svg").bounding_box()
        page.mouse.move(box["x"] + 10, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10, steps=4)
        page.mouse.up()
        answered(page)
        assert page.locator("#chips .seen", has_text="age in").count() == 1
        assert page.problems == []
        page.context.close()
    finally:
        served.stop()


def test_tabs_do_not_mix(browser: Any, models: Any, page: Any) -> None:
    other = opened(browser, models["alarm"])
    answered(other)
    observe(page, "BP", "LOW")
    observe(other, "HR", "LOW")
    assert page.locator("#chips .seen").all_inner_texts() == ["BP = LOW ✕"]
    assert other.locator("#chips .seen").all_inner_texts() == ["HR = LOW ✕"]
    assert told(other)["BP"] != ""
    assert "BP" not in told(page)
    other.context.close()


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, models: Any, width: int, scheme: str) -> None:
    page = opened(browser, models["alarm"], viewport={"width": width, "height": 800}, color_scheme=scheme)
    answered(page)
    observe(page, "BP", "LOW")
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for look in ("#board", "#share", "article[aria-label=BP] .name", "#row"):
        if look != "#board":
            page.click(look)
        found = axe.Axe().run(page)
        grave = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
        assert grave == [], found.generate_report()
        page.keyboard.press("Escape")
    page.context.close()


def test_pictures_for_the_docs(browser: Any, page: Any) -> None:
    """Five states, into the folder that CERTIMAP_PICTURES names; without it, into memory."""
    images, folder = pytest.importorskip("PIL.Image"), os.environ.get("CERTIMAP_PICTURES")

    def picture(shown: Any, name: str) -> None:
        shown.mouse.move(0, 0)
        shown.evaluate("document.activeElement.blur()")
        shown.wait_for_timeout(400)
        taken = images.open(io.BytesIO(shown.screenshot())).convert("RGB").quantize(96)
        packed = io.BytesIO()
        taken.save(packed, "PNG", optimize=True)
        assert len(packed.getvalue()) < 150_000
        if folder is not None:
            Path(folder, f"{name}.png").write_bytes(packed.getvalue())

    page.click("#fit")
    picture(page, "open")
    for name, label in FINDINGS.items():
        observe(page, name, label)
    find(page, "LVEDVOLUME")
    picture(page, "findings")
    page.fill("#top_k", "3")
    page.keyboard.press("Tab")
    answered(page)
    page.click("#view")
    page.click("#explain")
    page.wait_for_selector("#found h3")
    page.locator("#explain").evaluate("button => button.scrollIntoView({ block: 'start' })")
    picture(page, "why")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    page.locator("#chips").evaluate("chips => chips.scrollIntoView({ block: 'center' })")
    picture(page, "phone")
    served = cm.explore(hard(), path="grid.uai")
    try:
        wide = opened(browser, served)
        wide.wait_for_selector("#chart:not([hidden])")
        wide.wait_for_timeout(2000)
        picture(wide, "streaming")
        wide.context.close()
    finally:
        served.stop()
