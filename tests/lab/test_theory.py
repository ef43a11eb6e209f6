"""Theory beside practice: closed forms against enumeration, and tables that come out whole."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from certimap.cli.main import main
from certimap_lab.bench import theory


def test_expected_regret_is_that_of_all_sequences_of_draws():
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    for m in (1, 2, 4):
        total = 0.0
        for drawn in itertools.product(range(4), repeat=m):
            chance = float(np.prod(probs[list(drawn)]))
            total += chance * math.log2(0.4 / probs[list(drawn)].max())
        assert theory.expected_regret(probs, np.array([m]))[0] == pytest.approx(total)


def test_an_exponential_has_its_exponent():
    draws = np.arange(1, 200)
    assert theory.exponent(draws, 5.0 * np.exp(-0.03 * draws)) == pytest.approx(0.03)


def test_distributions_are_what_they_say():
    for found in theory.distributions(8, 0):
        assert found.probs.sum() == pytest.approx(1.0)
        assert found.h + found.d == pytest.approx(8)
        if found.lipschitz is not None:
            slope, radius = found.lipschitz
            mode = int(np.argmax(found.probs))
            for atom, p in enumerate(found.probs):
                distance = (atom ^ mode).bit_count()
                if distance <= radius:
                    assert math.log2(found.probs[mode] / p) <= slope * distance + 1e-9


def test_the_density_on_a_line_is_one():
    posterior, log_best = theory.peaked_density(4.0)
    x = np.linspace(0.0, 1.0, 100_001)[:, None]
    density = np.exp(posterior.log_prob(x))
    assert float(np.mean(density)) == pytest.approx(1.0, abs=1e-3)
    assert math.log(float(density.max())) == pytest.approx(log_best, abs=1e-6)
    drawn = np.sort(posterior.sample(20_000, np.random.default_rng(0))[:, 0])
    cumulated = np.interp(drawn, x[:, 0], np.cumsum(density) / len(x))
    assert float(np.abs(cumulated - np.arange(1, 20_001) / 20_000).max()) < 0.015


def test_the_command_fills_a_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("# A page\n<!-- begin theory -->\n<!-- end theory -->\n")
    assert main(["bench", "theory", "--variables", "6", "--runs", "2", "--into", str(page), "--quiet"]) == 0
    text = page.read_text()
    assert text.count("needle") >= 4
    assert "false, %" in text
    capsys.readouterr()
