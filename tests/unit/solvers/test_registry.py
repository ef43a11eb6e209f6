"""Solvers by name: those of the package, and others' own."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from typing import ClassVar

import numpy as np
import pytest

import certimap as cm
from certimap.conversions import plan
from certimap.core.domain import Domain
from certimap.core.posterior import Masses
from certimap.core.query import make_query
from certimap.errors import SolverError
from certimap.solvers import registry
from certimap.testing import random_circuit


@dataclass(frozen=True)
class Greedy(cm.Solver):
    """Fixes one variable after another at its most probable state."""

    name: ClassVar[str] = "greedy"
    needs: ClassVar = (Masses,)
    heuristic: ClassVar[bool] = True
    reverse: bool = False

    def init(self, posterior, control, rng, boxes=None):
        return GreedyState(posterior)

    def step(self, state, ledger):
        domain = state.posterior.domain
        mask = np.ones((1, domain.total_states), bool)
        for i in reversed(range(len(domain))) if self.reverse else range(len(domain)):
            here = slice(domain.offsets[i], domain.offsets[i + 1])
            each = state.posterior.log_mass_each(cm.Boxes(domain, mask))[0, here]
            mask[0, here] = np.arange(len(each)) == np.argmax(each)
        ledger.candidates(np.array([[np.flatnonzero(mask[0])[i] - domain.offsets[i] for i in range(len(domain))]]))
        state.done = True
        return state


@dataclass
class GreedyState:
    posterior: object
    done: bool = False


@pytest.fixture
def circuit():
    return random_circuit(np.random.default_rng(3), Domain.of_sizes([2, 3, 2]))


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_SOLVERS", dict(registry._SOLVERS))


def test_a_registered_solver_answers_by_name(circuit, registered):
    registry.register("greedy", Greedy)
    registry.register("greedy_backwards", Greedy, reverse=True)
    best = cm.map_query(circuit, rng=0, progress=False)
    for name in ("greedy", "greedy_backwards"):
        result = cm.map_query(circuit, solver=name, rng=0, progress=False)
        assert result.solver == "greedy"
        assert result.log_prob <= best.log_prob + 1e-12
    assert "greedy" in registry.heuristics()
    assert registry.make("greedy", reverse=True).reverse
    assert cm.map_query(
        circuit, warm_start="greedy", solver="pac", max_samples=0, rng=0, progress=False
    ).assignment


def test_a_name_that_is_taken_or_no_solver_is_refused(registered):
    with pytest.raises(SolverError, match="'pac' exists already"):
        registry.register("pac", Greedy)
    with pytest.raises(SolverError, match="no solver class"):
        registry.register("greedy", GreedyState)
    with pytest.raises(SolverError, match="did you mean 'frontier'"):
        registry.make("fronteer")


def test_solvers_of_installed_packages_are_found(circuit, registered, monkeypatch):
    point = EntryPoint("greedy", f"{__name__}:Greedy", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group, name: [point] if name == point.name else [])
    assert cm.map_query(circuit, solver="greedy", rng=0, progress=False).solver == "greedy"


def test_families_tell_methods_apart():
    assert [registry.family(n) for n in ("auto", "pac", "frontier", "set_elimination", "argmax_product")] == [
        "search", "sampling", "search", "elimination", "heuristic",
    ]  # fmt: skip
    assert registry.family("somebody's answers") == "other"


def test_the_expected_solver_is_the_one_that_runs(examples):
    alarm = cm.read(examples / "alarm.bif")
    circuit = random_circuit(np.random.default_rng(5), Domain.of_sizes([2] * 20))
    for model, names, evidence in (
        (alarm, ["HISTORY", "CVP"], {"HRBP": "HIGH"}),
        (alarm, None, {"HRBP": "HIGH"}),
        (circuit, None, None),
    ):
        choice = plan(model, make_query(model.domain, names, evidence))
        assert choice.why
        assert registry.expected(choice) == cm.map_query(model, names, evidence, rng=0, progress=False).solver


def test_facts_of_a_solver_are_arguments_of_its_class():
    class Eager(Greedy, name="eager", is_seeded=False):
        """A kind of its own."""

    assert (Eager.name, Eager.needs, Eager.heuristic, Eager.is_seeded) == ("eager", (Masses,), True, False)
    with pytest.raises(TypeError, match="'seeded'"):
        type("Wrong", (Greedy,), {}, seeded=False)


@pytest.mark.parametrize("name", sorted(set(registry.names()) - {"auto"}))
def test_settings_outside_their_ranges_are_refused(name):
    kind = registry.entry(name).load()
    assert set(ranges_of(kind.ranges)) <= {field.name for field in fields(kind)}
    for setting, (text, (low, high)) in ranges_of(kind.ranges).items():
        for value in [
            math.nextafter(low, -math.inf),
            np.nan,
            "1",
            *([math.nextafter(high, np.inf)] * (high < np.inf)),
        ]:
            with pytest.raises(SolverError, match=re.escape(f"{setting} is ")) as refused:
                registry.make(name, **{setting: value})
            assert f"number in {text}" in str(refused.value)


def ranges_of(text):
    """Return each setting's range as text, and the ends that are inside."""
    found = {}
    for part in text.split("; ") if text else ():
        at = min(part.find(sign) for sign in "[(" if sign in part)
        low, high = part[at + 1 :][:-1].split(", ")
        low = float(math.nextafter(float(low), 9.0)) if part[at] == "(" else float(low)
        high = float(math.nextafter(float(high), -9.0)) if ")" in part else float(high)
        found |= dict.fromkeys(part[:at].strip().split(", "), (part[at:], (low, high)))
    return found


def test_entries_of_sequences_and_mappings_have_ranges_too():
    for name, settings in (("set_elimination", {"limits": (4, 0)}), ("cells", {"width": {"x": 0.0}})):
        with pytest.raises(SolverError, match=r"expected a (whole )?number in"):
            registry.make(name, **settings)
    assert registry.make("itself", hidden=[4, 3]).hidden == [4, 3]
