"""Half-hidden pictures: the most probable other half under circuits learned from scikit-learn's digits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.ask.api import map_query
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.learn import HiddenChowLiuTree, RegionGraphCircuit
from certimap_lab.bench.records import BenchError
from certimap_lab.bench.tabular import Table, number, significant

SIDE, GREYS = 8, 17  # of scikit-learn's pictures: pixels, and levels of grey
HIDDEN_SMOOTHING = 1.0  # given, lest the hidden tree takes fewer states for so few rows
Codes = NDArray[np.int64]

ESTIMATORS: dict[str, Callable[[Domain, int], Any]] = {
    "hclt-64": lambda domain, seed: HiddenChowLiuTree(
        64, smoothing=HIDDEN_SMOOTHING, domain=domain, random_state=seed
    ),
    "quad-32": lambda domain, seed: RegionGraphCircuit(32, domain=domain, random_state=seed),
    "poon-domingos-20": lambda domain, seed: RegionGraphCircuit(20, step=2, domain=domain, random_state=seed),
}


@dataclass(frozen=True)
class DigitsPlan:
    """What is learned and asked.

    Attributes
    ----------
    methods
        Names of `ESTIMATORS`.
    levels
        Numbers of grey levels, 2 to 17.
    n_pictures
        Held-out pictures, each with one half hidden: upper, lower, left and right ones in turn.
    epsilon, time_limit
        Of each query.
    seed
        Of the pictures held out, the learners and the queries.
    """

    methods: tuple[str, ...]
    levels: tuple[int, ...]
    n_pictures: int
    epsilon: float
    time_limit: float
    seed: int

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in ESTIMATORS:
                raise BenchError(f"{name!r} is no method; {', '.join(ESTIMATORS)} are")
        for level in self.levels:
            if not 2 <= level <= GREYS:
                raise BenchError(f"{level} is no number of grey levels; expected 2 to {GREYS}")


def run_digits(plan: DigitsPlan, report: Callable[[str], None]) -> Table:
    """Learn each model from the pictures that are not held out, and ask for hidden halves of those that are.

    Parameters
    ----------
    plan
        What is learned and asked.
    report
        Told what is at work.

    Returns
    -------
    Table
        A line per model: edges of its circuit, nats per held-out picture, proofs, seconds on the clock, gaps.

    Raises
    ------
    BenchError
        Without scikit-learn, whose pictures these are.
    """
    header = ("model", "grey levels", "edges", "learned in s", "nats per picture", "proved", "median s")
    table = Table(
        "digits",
        f"Half-hidden digits, proved at epsilon {plan.epsilon:g} within {plan.time_limit:g} s",
        (*header, "longest s", "median CPU s", "largest gap"),
        notes=["Nats per picture: mean log-likelihood of the pictures held out. Gaps between the bounds in nats."],
    )
    pictures = _pictures()
    for levels in plan.levels:
        coded = pictures * levels // GREYS
        order = np.random.default_rng(plan.seed).permutation(len(coded))
        held_out, train = coded[order[: plan.n_pictures]], coded[order[plan.n_pictures :]]
        domain = Domain.of_sizes([levels] * SIDE**2)
        for name in plan.methods:
            start = time.monotonic()
            estimator = ESTIMATORS[name](domain, plan.seed).fit(train)
            learned = time.monotonic() - start
            nats = float(estimator.score(held_out))
            n_edges = int(estimator.to_circuit().n_edges)
            report(f"{name}, {levels} grey levels: {n_edges} edges, {nats:.1f} nats per held-out picture")
            answers = _Answers.of(estimator.model_, held_out, plan, report)
            row = (name, str(levels), f"{n_edges:,}", significant(learned), number(nats), answers.proved)
            table.add(*row, *answers.told)
    return table


@dataclass(frozen=True)
class _Answers:
    proved: str
    told: tuple[str, str, str, str]

    @classmethod
    def of(cls, model: Model, held_out: Codes, plan: DigitsPlan, report: Callable[[str], None]) -> _Answers:
        seconds: list[float] = []
        processor: list[float] = []
        gaps: list[float] = []
        n_proved = 0
        for k, picture in enumerate(held_out):
            hidden = _half(k)
            names = model.domain.names
            evidence = {names[i]: int(picture[i]) for i in range(len(names)) if i not in hidden}
            start, used = time.monotonic(), time.process_time()
            result = map_query(
                model,
                [names[i] for i in sorted(hidden)],
                evidence,
                epsilon=plan.epsilon,
                delta=0.0,
                rng=plan.seed,
                time_limit=plan.time_limit,
            )
            seconds.append(time.monotonic() - start)
            processor.append(time.process_time() - used)
            n_proved += result.certified
            assert result.log_prob is not None
            assert result.log_upper_bound is not None
            gaps.append(max(0.0, result.log_upper_bound - result.log_prob))
            report(f"  picture {k}: {significant(seconds[-1])} s, gap {significant(gaps[-1])} ({result.solver})")
        median, of_processor = float(np.median(seconds)), float(np.median(processor))
        times = (significant(median), significant(max(seconds)), significant(of_processor))
        return cls(f"{n_proved} of {len(held_out)}", (*times, significant(max(gaps))))


def _half(k: int) -> set[int]:
    """Return the pixels of the upper, lower, left or right half."""
    grid = np.arange(SIDE**2).reshape(SIDE, SIDE)
    half = SIDE // 2
    parts: Sequence[Codes] = (grid[:half], grid[half:], grid[:, :half], grid[:, half:])
    return set(parts[k % 4].ravel().tolist())


def _pictures() -> Codes:
    """Return scikit-learn's 1,797 digits, shape (pictures, pixels), grey levels 0 to 16."""
    try:
        shipped: Any = import_module("sklearn.datasets")
    except ImportError:
        raise BenchError("the pictures come with scikit-learn; pip install scikit-learn") from None
    return np.asarray(shipped.load_digits().data, np.int64)
