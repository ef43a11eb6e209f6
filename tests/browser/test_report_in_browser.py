"""The report in headless Chromium: loads offline, answers its slider, and has nothing against accessibility."""

from __future__ import annotations

import importlib
import os
import re
import time
from typing import Any

import pytest

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

from certimap.cli.main import main  # noqa: E402


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with a proved answer, one cut short with a front, and names that are markup."""
    folder = tmp_path_factory.mktemp("report")
    cm = importlib.import_module("certimap")
    examples = [str(p) for p in (folder / "exact.json", folder / "short.json")]
    root = os.path.join(os.path.dirname(__file__), "..", "..", "examples")
    asia, alarm = os.path.join(root, "asia.bif"), os.path.join(root, "alarm.bif")
    assert cm.__version__
    assert main(["solve", asia, "-e", "xray=yes", "--top-k", "3", "--explain", "-o", examples[0]]) == 0
    short = ["--solver", "pac", "--max-samples", "40", "--epsilon", "0.01", "--rng", "7", "-o", examples[1]]
    assert main(["solve", alarm, "-q", "HISTORY,CVP,PCWP,LVFAILURE,HR,BP,CO,TPR", "-e", "HRBP=HIGH", *short]) == 0
    page = folder / "page.html"
    assert main(["report", *examples, "-o", str(page)]) == 0
    return page.as_uri()


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    context = browser.new_context(viewport={"width": 1000, "height": 800}, offline=True)
    opened = context.new_page()
    opened.problems = []
    opened.on("console", lambda m: opened.problems.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: opened.problems.append(str(error)))
    started = time.perf_counter()
    opened.goto(address)
    opened.wait_for_selector("html[data-drawn]", state="attached")
    opened.seconds = time.perf_counter() - started
    yield opened
    context.close()


def test_it_loads_without_errors_and_draws(page: Any) -> None:
    assert page.problems == []
    print(f"drawn after {page.seconds:.2f} s")
    assert page.locator("canvas").count() == 4
    ink = """c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
               return d.some((v, i) => i % 4 === 3 && v > 0); }"""
    assert all(canvas.evaluate(ink) for canvas in page.locator("canvas").all())


def test_the_slider_reads_off_delta_by_keyboard(page: Any) -> None:
    slider, output = page.locator("#epsilon-1"), page.locator("#delta-1")
    slider.focus()
    page.keyboard.press("Home")
    assert re.search(r"^At epsilon 0[, ]", output.inner_text())
    page.keyboard.press("End")
    last = output.inner_text()
    assert last.startswith("At epsilon 1, delta is ")
    page.keyboard.press("ArrowLeft")
    assert output.inner_text().startswith("At epsilon 0.999, ")
    assert slider.get_attribute("aria-valuetext") == output.inner_text()
    pairs = page.evaluate("JSON.parse(document.getElementById('data').textContent)[1].pareto")
    middle = len(pairs) // 2
    slider.evaluate(
        "(s, v) => { s.value = v; s.dispatchEvent(new Event('input')); }", round(pairs[middle][0] + 0.001, 3)
    )
    held = min(delta for epsilon, delta in pairs if epsilon <= float(slider.input_value()))
    found = re.search(r"delta is ([\d.e-]+)[,:]", output.inner_text())
    assert found is not None
    assert float(found[1]) == pytest.approx(held, rel=0.01)


def test_it_fits_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert float(page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")) >= 16
    assert all(canvas.bounding_box()["width"] <= 360 for canvas in page.locator("canvas").all())


@pytest.mark.parametrize("width", [360, 1000])
def test_axe_finds_nothing(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    found = axe.Axe().run(page)
    assert found.response["violations"] == [], found.generate_report()
