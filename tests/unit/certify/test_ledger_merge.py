"""Ledgers of several searches merge into what one ledger over everything would hold."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from certimap.certify.findings import Books
from certimap.certify.ledger import Ledger, is_partition, issue, own_source, pareto_front
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.domain import Domain, Real
from certimap.core.result import CertificateKind, Rule
from certimap.errors import SolverError, UnbalancedBooks
from certimap.solvers.box_search.frontier import Frontier, Pace
from certimap.testing import TablePosterior

EPSILONS = (0.0, 0.01, 0.1, 0.5, 0.9)


def a_table(rng, sizes=(3, 2, 4)):
    return TablePosterior(
        sizes, rng.gamma(0.4, size=math.prod(sizes)) + 1e-9, looseness=float(rng.choice([0.0, 1.0]))
    )


def split(domain, variable):
    """Return one box per state of a variable."""
    columns = range(int(domain.offsets[variable]), int(domain.offsets[variable + 1]))
    boxes = []
    for column in columns:
        mask = np.ones((1, domain.total_states), np.bool_)
        mask[0, domain.offsets[variable] : domain.offsets[variable + 1]] = False
        mask[0, column] = True
        boxes.append(Boxes(domain, mask))
    return boxes


def search(posterior, ledger, rng, n_steps, boxes=None):
    """Search a box for some steps; return whether it came to its end."""
    solver = Frontier(exact_work=0, first_draws=4, pace=Pace(step_work=1, max_batch=1, min_draws=4))
    state = solver.init(posterior, Control(), rng, boxes)
    for _ in range(n_steps):
        if state.done:
            break
        state = solver.step(state, ledger)
    return state.done


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n_workers=st.integers(1, 4), top_k=st.integers(1, 3))
def test_runs_over_the_whole_space_add_up_to_one_run(seed, n_workers, top_k):
    rng = np.random.default_rng(seed)
    posterior = a_table(rng)
    one = Ledger(posterior, top_k=top_k, early_stop=False)
    several = [Ledger(posterior, top_k=top_k, early_stop=False) for _ in range(n_workers)]
    for ledger in several:
        for _ in range(int(rng.integers(0, 4))):
            points = posterior.sample(int(rng.integers(1, 12)), rng)
            for target in (one, ledger):
                target.draws(points)
        points = posterior.points[rng.integers(0, 24, size=2)]
        for target in (one, ledger):
            target.candidates(points)
    merged = Ledger.merge(several)
    assert (merged.n_draws, merged.n_evaluations) == (one.n_draws, one.n_evaluations)
    assert [v for v, _ in merged.best] == [v for v, _ in one.best]
    assert merged.log_residual == pytest.approx(one.log_residual, abs=1e-12)
    for epsilon in EPSILONS:
        assert merged.log_delta(epsilon) == pytest.approx(one.log_delta(epsilon), rel=1e-12, abs=1e-12)
    assert issue(merged).kind == issue(one).kind


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), variable=st.integers(0, 2), top_k=st.integers(1, 3))
def test_searches_of_parts_prove_what_holds_of_the_whole(seed, variable, top_k):
    rng = np.random.default_rng(seed)
    posterior = a_table(rng)
    parts, ends = [], []
    for box in split(posterior.domain, variable):
        ledger = Ledger(posterior, epsilon=0.0, top_k=top_k, boxes=box)
        ends.append(search(posterior, ledger, rng, int(rng.integers(1, 12)), box))
        parts.append(ledger)
    merged = Ledger.merge(parts)
    log_best = float(np.log(posterior.probs.max()))
    assert merged.log_upper_bound >= log_best
    assert merged.n_evaluations >= max(part.n_evaluations for part in parts)
    assert math.exp(merged.log_closed_measure) <= 1.0 + 1e-9
    if all(ends):
        assert merged.best_log_prob == pytest.approx(log_best, abs=1e-12)
        certificate = issue(merged)
        assert (certificate.kind, certificate.delta) == (CertificateKind.EXACT, 0.0)
        expected = np.sort(np.log(posterior.probs))[::-1][:top_k]
        assert [v for v, _ in merged.best] == pytest.approx(list(expected), abs=1e-12)
    for epsilon, delta in pareto_front(merged):
        if delta == 0.0:
            assert log_best <= merged.best_log_prob - math.log1p(-epsilon) + 1e-9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), variable=st.integers(0, 2))
def test_draws_in_parts_count_at_least_as_an_uneven_allocation(seed, variable):
    """n_j of N draws in a part of mass M_j are worth N draws at R = max M_j N / n_j, or a little more."""
    rng = np.random.default_rng(seed)
    posterior = a_table(rng)
    one, parts = Ledger(posterior, early_stop=False), []
    boxes = split(posterior.domain, variable)
    counts = rng.integers(1, 40, size=len(boxes))
    masses = np.exp([float(posterior.log_mass(box)[0]) for box in boxes])
    log_r = math.log(np.max(masses * counts.sum() / counts))
    for box, n in zip(boxes, counts, strict=True):
        part = Ledger(posterior, early_stop=False, boxes=box)
        points = posterior.sample(int(n), rng, boxes=box)
        part.draws(points)
        one.draws(points, log_r)
        parts.append(part)
    merged = Ledger.merge(parts)
    assert merged.n_draws == one.n_draws
    for epsilon in EPSILONS:
        assert merged.log_delta(epsilon) <= one.log_delta(epsilon) + 1e-9


def test_a_merged_search_goes_on_with_the_open_boxes_of_all():
    rng = np.random.default_rng(3)
    posterior = TablePosterior([3, 2, 4], rng.uniform(0.9, 1.0, 24), looseness=3.0)
    boxes = split(posterior.domain, 0)
    merged = Ledger.merge([Ledger(posterior, boxes=box) for box in boxes])
    assert not merged.satisfied
    with pytest.raises(UnbalancedBooks):
        merged.frontier(-math.inf, -math.inf)
    merged.draws(posterior.sample(50, rng), 0.0)
    assert merged.log_delta(0.5) < 0.0
    merged.settle(posterior.points)
    merged.frontier(-math.inf, -math.inf)
    assert issue(merged).kind is CertificateKind.EXACT
    with pytest.raises(SolverError, match="Lipschitz"):
        merged.assume_lipschitz(1.0, 1)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_partition_is_one_by_the_points_that_boxes_hold(data):
    """Boxes split a target exactly where each of its points lies in one of them, and no other point does."""
    domain = Domain.of_sizes([2, 3])
    box = st.tuples(st.integers(1, 3), st.integers(1, 7)).map(lambda m: [*bits(m[0], 2), *bits(m[1], 3)])
    whole = np.array(data.draw(box), np.bool_)
    v, states = data.draw(st.sampled_from([(slice(0, 2), 2), (slice(2, 5), 3)]))
    one = whole.copy()
    one[v] &= bits(data.draw(st.integers(0, 2**states - 1)), states)
    other = whole.copy()
    other[v] &= ~one[v]
    parts = [part for part in (one, other) if part[:2].any() and part[2:].any()] or [whole]
    if data.draw(st.booleans()):
        parts[data.draw(st.integers(0, len(parts) - 1))] = np.array(data.draw(box), np.bool_)
    counts = sum(np.outer(part[:2], part[2:]).astype(int) for part in parts)
    splits = np.array_equal(counts, np.outer(whole[:2], whole[2:]))
    boxes, target = [Boxes(domain, part[None]) for part in parts], Boxes(domain, whole[None])
    if all(np.array_equal(part, whole) for part in parts):
        assert not is_partition(domain, boxes, target)
    elif splits:
        assert is_partition(domain, boxes, target)
    else:
        with pytest.raises(UnbalancedBooks):
            is_partition(domain, boxes, target)


def test_boxes_that_overlap_do_not_split_a_space_though_their_sizes_add_up_to_it():
    domain = Domain.of_sizes([2, 3])
    masks = np.array([[1, 0, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 1, 1, 0]], np.bool_)  # 3, 1 and 2 points of 6
    for order in itertools.permutations(range(3)):
        with pytest.raises(UnbalancedBooks):
            is_partition(domain, [Boxes(domain, masks[i : i + 1]) for i in order], None)


def bits(number, n):
    return np.array([number >> k & 1 for k in range(n)], np.bool_)


@pytest.mark.parametrize("other", [((0.0, 0.0), (1.0, 2.0)), ((-1.0, 0.0), (1.0, 1.0)), ((-1.0, 0.5), (1.0, 2.0))])
def test_boxes_of_real_variables_are_the_same_at_both_ends_of_each_or_not_merged(other):
    domain = Domain([Real("x", -1.0, 1.0), Real("y", 0.0, 2.0)])
    none = np.zeros((1, 0), np.bool_)
    part = Boxes(domain, none, *(np.array([side]) for side in other))
    assert not is_partition(domain, [None, Boxes.full(domain)], None)
    assert not is_partition(domain, [part, part], part)
    for parts, whole in (([None, part], None), ([part, part], None), ([None], part)):
        with pytest.raises(UnbalancedBooks):
            is_partition(domain, parts, whole)


def test_the_open_mass_of_parts_is_their_sum_where_each_knows_its_own():
    posterior = TablePosterior((2, 2), np.array([0.4, 0.3, 0.2, 0.1]))
    parts = [Ledger(posterior, boxes=box) for box in split(posterior.domain, 0)]
    parts[0].frontier(math.log(0.7), math.log(0.4))
    assert Ledger.merge(parts).log_open_mass is None
    parts[1].frontier(math.log(0.3), math.log(0.2))
    assert Ledger.merge(parts).log_open_mass == pytest.approx(0.0, abs=1e-12)


def test_merging_in_stages_is_merging_at_once():
    rng = np.random.default_rng(4)
    posterior = a_table(rng)
    boxes = split(posterior.domain, 2)
    parts = []
    for box in boxes:
        part = Ledger(posterior, boxes=box, early_stop=False)
        part.draws(posterior.sample(20, rng, boxes=box))
        parts.append(part)
    left = Boxes(posterior.domain, boxes[0].mask | boxes[1].mask)
    right = Boxes(posterior.domain, boxes[2].mask | boxes[3].mask)
    staged = Ledger.merge([Ledger.merge(parts[:2], left), Ledger.merge(parts[2:], right)])
    at_once = Ledger.merge(parts)
    assert staged.n_draws == at_once.n_draws == 80
    for epsilon in EPSILONS:
        assert staged.log_delta(epsilon) == pytest.approx(at_once.log_delta(epsilon))


def test_proofs_from_outside_keep_their_names():
    posterior = TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1])
    parts = [Ledger(posterior, epsilon=0.0, boxes=box) for box in split(posterior.domain, 0)]
    parts[0].candidates(posterior.points)
    parts[0].upper_bound(math.log(0.4), own_source("a test"))
    parts[1].upper_bound(math.log(0.2), "somebody")
    certificate = issue(Ledger.merge(parts))
    assert (certificate.kind, certificate.rule) == (CertificateKind.EXACT, Rule.RESIDUAL)
    sparse = [Ledger(posterior, epsilon=0.0, boxes=box) for box in split(posterior.domain, 0)]
    sparse[0].candidates(posterior.points[:1])
    sparse[0].upper_bound(math.log(0.4), own_source("a test"))
    sparse[1].upper_bound(math.log(0.2), "somebody")
    certificate = issue(Ledger.merge(sparse))
    assert certificate.kind is CertificateKind.EXACT
    assert certificate.assumptions == ("the upper bound from a test, somebody holds",)
    sparse[1] = Ledger(posterior, epsilon=0.0, boxes=sparse[1].boxes)
    assert issue(Ledger.merge(sparse)).kind is not CertificateKind.EXACT


def test_a_box_that_was_listed_needs_no_draws():
    posterior = TablePosterior([2, 3], [0.3, 0.2, 0.1, 0.15, 0.15, 0.1])
    boxes = split(posterior.domain, 0)
    listed, drawn = (Ledger(posterior, boxes=box, early_stop=False) for box in boxes)
    with pytest.raises(SolverError, match="not the whole"):
        listed.enumerated()
    listed.candidates(posterior.points[:3])
    listed.enumerated()
    drawn.draws(posterior.sample(9, np.random.default_rng(0), boxes=boxes[1]))
    merged = Ledger.merge([listed, drawn])
    assert not merged.is_enumerated
    assert merged.log_delta(0.0) == pytest.approx(9 * math.log1p(-0.3 / 0.4))


def test_ledgers_that_do_not_fit_together_are_refused():
    posterior = TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1])
    boxes = split(posterior.domain, 0)
    with pytest.raises(SolverError, match="at least one"):
        Ledger.merge([])
    with pytest.raises(SolverError, match=r"different epsilon \(0.01, 0.1\)"):
        Ledger.merge([Ledger(posterior), Ledger(posterior, epsilon=0.1)])
    with pytest.raises(SolverError, match="different variables"):
        Ledger.merge([Ledger(posterior), Ledger(TablePosterior([4], [0.4, 0.3, 0.2, 0.1]))])
    for wrong in (boxes[:1], [boxes[0], boxes[0]], [boxes[0], split(posterior.domain, 1)[0]], [None, boxes[0]]):
        with pytest.raises(UnbalancedBooks, match="disjoint"):
            Ledger.merge([Ledger(posterior, boxes=box) for box in wrong])
    with pytest.raises(UnbalancedBooks, match="disjoint"):
        Ledger.merge([Ledger(posterior), Ledger(posterior)], boxes[0])
    with pytest.raises(SolverError, match="one, or None"):
        Ledger(posterior, boxes=Boxes.concatenate(boxes))
    with pytest.raises(SolverError, match="no state"):
        Ledger(posterior, boxes=Boxes(posterior.domain, np.zeros((1, 4), np.bool_)))


def test_draws_inside_a_box_need_its_mass():
    table = TablePosterior([2, 2], [0.4, 0.3, 0.2, 0.1])

    class Massless:
        domain, facts, log_prob = table.domain, table.facts, staticmethod(table.log_prob)

    ledger = Ledger(Massless(), boxes=split(table.domain, 0)[0])
    with pytest.raises(UnbalancedBooks, match="masses"):
        ledger.draws(table.points[:1])


def test_nothing_covers_an_impossible_part_of_the_space():
    books = Books("mass", -math.inf)
    books.check_open(-math.inf)
    books.close(-math.inf)
    books.check_open(-math.inf)
    with pytest.raises(UnbalancedBooks, match="hold"):
        books.check_open(-1.0)
