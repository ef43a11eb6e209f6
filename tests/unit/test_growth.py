"""Time grows with the number of variables and no faster: bytecodes are counted, which no clock disturbs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import certimap as cm

SMALL, LARGE = 60, 240
SLACK = 1.15  # over exact proportion: n log n passes, n^1.2 doesn't


def bytecodes(function: Callable[[], Any]) -> tuple[int, Any]:
    """Return how many bytecodes of Python a call runs, and what it returns."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function()
    finally:
        sys.settrace(previous)
    return count, result


def grows_linearly(work: Callable[[Any], Any], small: Any, large: Any) -> None:
    work(small)  # imports and compiles
    work(large)
    small, large = (
        pickle.loads(pickle.dumps(given)) for given in (small, large)
    )  # copies have kept no orders yet
    few, _ = bytecodes(lambda: work(small))
    many, _ = bytecodes(lambda: work(large))
    assert many <= SLACK * LARGE / SMALL * few


def parts(shape: str, n: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what `from_cpts` takes for a chain, a tree or a hidden Markov model, rows by their labels."""
    rng = np.random.default_rng(3)
    above = {"chain": lambda i: i - 1, "tree": lambda i: (i - 1) // 2, "hmm": lambda i: i - 2 + i % 2}[shape]
    names = [f"v{i}" for i in range(n)]
    parents = {names[i]: [names[above(i)]] for i in range(1, n)}
    rows = {name: {label: rng.dirichlet([1, 1]) for label in "ab"} for name in names}
    return dict.fromkeys(names, "ab"), parents, {**rows, "v0": rng.dirichlet([1, 1])}


def network(shape: str, n: int) -> cm.BayesianNetwork:
    return cm.BayesianNetwork.from_cpts(*parts(shape, n))


@pytest.mark.parametrize("shape", ["chain", "tree", "hmm"])
def test_building(shape: str):
    grows_linearly(lambda given: cm.BayesianNetwork.from_cpts(*given), parts(shape, SMALL), parts(shape, LARGE))


@pytest.mark.parametrize("suffix", [".uai", ".bif", ".npz"])
def test_writing_and_reading(suffix: str, tmp_path: Path):
    def work(model: cm.BayesianNetwork) -> None:
        model.write(tmp_path / f"model{suffix}")
        cm.read(tmp_path / f"model{suffix}")

    grows_linearly(work, network("tree", SMALL), network("tree", LARGE))


@pytest.mark.parametrize("shape", ["chain", "tree", "hmm"])
def test_most_probable_explanation(shape: str):
    def work(model: cm.BayesianNetwork) -> None:
        result = cm.map_query(model, epsilon=0, rng=1)
        assert result.certificate.kind == "exact"
        result.to_json()

    grows_linearly(work, network(shape, SMALL), network(shape, LARGE))


def test_conditioning_a_hidden_markov_model():
    def work(model: cm.BayesianNetwork) -> None:
        names = model.domain.names
        step = 2 * (len(names) // 24)
        cm.condition(model, names[::step], dict.fromkeys(names[1::2], "a"))

    grows_linearly(work, network("hmm", SMALL), network("hmm", LARGE))


def test_compiling():
    grows_linearly(lambda model: model.compile(), network("chain", SMALL), network("chain", LARGE))
