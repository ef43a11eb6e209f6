"""The box search's rounding: its counts by definition, and no bound is below the exact value by the last digit."""

from __future__ import annotations

import itertools
import math
import os

import mpmath
import numpy as np
import pytest
from frontier_twin import all_points, random_circuit, random_domain

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.kernels.probe import log_column, slack_of
from certimap.circuits.plan import Plan
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import Caps, PlanProber, PlanView, make_pool
from certimap.core.box import SearchBoxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.query import make_query
from certimap.core.rounding import ALL_SUMS, ENTROPY, FLOWS, STEPS, SUMS
from certimap.errors import ImpossibleEvidence


def plans(count: int, start: int = 0, n_real: int = 0):
    """Yield random plans; of some leaves of the discrete ones an entry is far below what products may keep."""
    for t in range(start, start + count):
        rng = np.random.default_rng([23, t])
        domain = random_domain(rng, int(rng.integers(1, 5)), n_real)
        circuit = random_circuit(rng, domain, shared=t % 2 == 0)
        if t % 3 == 0 and not n_real:
            circuit.params.setflags(write=True)
            circuit.params[rng.random(len(circuit.params)) < 0.1] = -300.0
        try:
            yield rng, CircuitPosterior.from_circuit(circuit, make_query(domain))
        except ImpossibleEvidence:
            continue


def own(plan: Plan, in_logs: np.ndarray, node: int) -> dict[int, float]:
    """What one node adds to each count (see "Rounding in circuits" in `docs/what-a-certificate-means.md`)."""
    k = int(plan.child_ptr[node + 1] - plan.child_ptr[node])
    if plan.is_sum[node]:
        return {STEPS: k + 8, ENTROPY: math.log(max(k, 1)), ALL_SUMS: 4, SUMS: 4}
    leaves = np.arange(plan.leaf_ptr[node], plan.leaf_ptr[node + 1])
    sizes = plan.domain.n_states[plan.leaf_var[leaves]]
    logs = in_logs[leaves]
    sums = 2 + 3 * int(logs.sum()) + k
    return {
        STEPS: 4 + sum(4 + int(size) if size else 64 for size in sizes),
        ENTROPY: sum(math.log(max(int(size), 1)) for size in sizes[logs]),
        ALL_SUMS: sums + int((~logs).sum()) // 3,
        SUMS: sums,
    }


def trees(plan: Plan, node: int):
    """Yield the nodes of every tree of choices below a node, with repetition: one child of each sum."""
    children = plan.children[plan.child_ptr[node] : plan.child_ptr[node + 1]].tolist()
    if plan.is_sum[node]:
        for child in children:
            yield from ([node, *below] for below in trees(plan, child))
    else:
        for parts in itertools.product(*(list(trees(plan, child)) for child in children)):
            yield [node, *itertools.chain(*parts)]


def paths(plan: Plan, node: int):
    """Yield every path from a node down."""
    yield [node]
    for child in plan.children[plan.child_ptr[node] : plan.child_ptr[node + 1]].tolist():
        yield from ([node, *below] for below in paths(plan, child))


def check_counts(plan: Plan) -> None:
    view = PlanView.of(plan)
    in_logs = view.arrays.in_logs
    each = [own(plan, in_logs, node) for node in range(plan.n_nodes)]
    root = plan.n_nodes - 1
    n_parents = np.bincount(plan.children, minlength=plan.n_nodes)
    occurrences = np.bincount(plan.leaf_var, minlength=len(plan.domain))
    down = list(paths(plan, root))
    for count in (STEPS, ENTROPY):
        worst = max(sum(each[i][count] for i in tree) for tree in trees(plan, root))
        assert view.roundings[count] == pytest.approx(worst, rel=1e-12)
    for count in (ALL_SUMS, SUMS):
        assert view.roundings[count] == max(sum(each[i][count] for i in path) for path in down)
    worst = max(sum(6.0 + n_parents[i] for i in path) for path in down)
    assert view.roundings[FLOWS] == worst + occurrences.max() + 8.0


@pytest.mark.nojit
def test_counts_are_those_of_the_worst_tree_and_the_worst_path() -> None:
    n_checked = 0
    for n_real, start in ((0, 0), (2, 100)):
        for _, posterior in plans(12, start, n_real):
            if posterior.plan.n_nodes < 60:
                check_counts(posterior.plan)
                n_checked += 1
    assert n_checked > 12
    builder = CircuitBuilder(Domain.of_sizes([2] * 7))
    parts = [
        [builder.categorical(v, log_weights=[math.log(p), math.log1p(-p)]) for v in range(7)] for p in (0.3, 0.6)
    ]
    parts[1][0] = builder.categorical(0, log_weights=[-300.0, 0.0])
    builder.sum([builder.product(part) for part in parts], log_weights=[math.log(0.5)] * 2)
    check_counts(CircuitPosterior.from_circuit(builder.build(normalised=False), make_query(builder.domain)).plan)


@pytest.mark.nojit
@pytest.mark.skipif(not os.environ.get("NUMBA_DISABLE_JIT"), reason="calls parts of kernels")
def test_the_slack_of_a_log_and_of_a_column_is_what_the_proof_asks_for() -> None:
    roundings = np.zeros(5)
    roundings[[STEPS, ENTROPY, ALL_SUMS, SUMS, FLOWS]] = 90.0, 7.0, 60.0, 11.0, 31.0
    assert slack_of(-np.inf, roundings) == 0.0
    assert log_column(-3.0, 0.0, roundings) == -np.inf
    for value in (0.0, -0.5, -80.0, -443.0, -3000.0, -1e6):
        reach = abs(value) + 7.0
        slope = min(60.0, 11.0 * (1.0 + reach / 443.0))
        slack = slack_of(value, roundings)
        assert slack == pytest.approx(2.3e-16 * (90.0 + slope * reach), rel=1e-12)
        for relative in (1e-300, 0.2, 0.999999):
            column = value + math.log(relative)
            more = 2.0 * slack_of(column, roundings) + 31.0 * 2.3e-16
            raised = log_column(value, relative, roundings) - column
            assert raised == pytest.approx(min(more, value + slack - column), rel=0.03)
        for relative in (1.0, 7.0, np.inf, np.nan):
            assert log_column(value, relative, roundings) == value + slack


def exact_values(posterior: CircuitPosterior) -> tuple[np.ndarray, list[list[mpmath.mpf]]]:
    """All points, and each node's value there with 50 digits, of the numbers that the plan holds."""
    plan = posterior.plan
    in_logs = PlanView.of(plan).arrays.in_logs
    points = all_points(plan.domain)
    weights = [mpmath.exp(mpmath.mpf(float(w))) if w > -np.inf else mpmath.mpf(0) for w in plan.log_weights]
    found = []
    for point in points:
        values: list[mpmath.mpf] = []
        for i in range(plan.n_nodes):
            edges = range(plan.child_ptr[i], plan.child_ptr[i + 1])
            if plan.is_sum[i]:
                values.append(mpmath.fsum(weights[e] * values[plan.children[e]] for e in edges))
                continue
            value = mpmath.fprod(values[plan.children[e]] for e in edges)
            for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
                at = plan.leaf_start[leaf] + point[plan.leaf_var[leaf]]
                log_entry = float(plan.log_tables[at])
                logs = in_logs[leaf] and log_entry > -np.inf
                value *= mpmath.exp(mpmath.mpf(log_entry)) if logs else mpmath.mpf(float(plan.tables[at]))
            values.append(value)
        found.append(values)
    return points, found


def is_below(log_bound: float, value: mpmath.mpf) -> bool:
    value = min(value, mpmath.mpf(1))  # a plan's masses add to 1 but for its own rounding
    return value > 0 and (log_bound == -np.inf or mpmath.exp(mpmath.mpf(float(log_bound))) < value)


def check_last_digits(rng: np.random.Generator, posterior: CircuitPosterior) -> None:
    plan, domain = posterior.plan, posterior.domain
    points, values = exact_values(posterior)
    caps = Caps(PlanView.of(plan), float(rng.choice([1e-9, 0.3])), max_boxes=int(rng.choice([1, 3, 1000])))
    caps.advance(10**9)
    for node in caps.table.targets:
        assert not is_below(caps.log_caps[node], max(row[node] for row in values))
    masks = rng.random((4, domain.total_states)) < 0.7
    masks[0] = True
    columns = domain.offsets[:-1] + points.astype(np.int64)
    for log_caps in (None, caps.log_caps):
        none = np.zeros((4, 0))
        got = PlanProber(plan, 1, log_caps).probe(SearchBoxes(masks.astype(np.uint8), none, none))
        for row, mask in enumerate(masks):
            inside = mask[columns].all(axis=1)
            held = [(values[k][-1], columns[k]) for k in np.flatnonzero(inside)]
            assert not is_below(got.log_mass[row], mpmath.fsum(x for x, _ in held))
            assert not is_below(got.log_bound[row], max((x for x, _ in held), default=mpmath.mpf(0)))
            for column in np.flatnonzero(mask) if held else ():
                here = [x for x, at in held if column in at]
                assert not is_below(got.each_mass[row, column], mpmath.fsum(here))
                assert not is_below(got.each_bound[row, column], max(here, default=mpmath.mpf(0)))


@pytest.mark.nojit
def test_no_bound_is_below_the_exact_value_by_the_last_digit() -> None:
    with mpmath.workdps(50):
        for rng, posterior in plans(16):
            check_last_digits(rng, posterior)


def real_circuit(rng: np.random.Generator):
    """A mixture of products of leaves with jumps and kinks, whole numbers and states, with a sum inside."""
    domain = Domain([Real("x"), Real("k"), Categorical("c", (0, 1, 2)), Real("y")])
    builder = CircuitBuilder(domain)

    def x(v: int) -> int:
        middle, width = float(rng.integers(-2, 3)), float(rng.uniform(0.3, 1.5))
        kind = str(rng.choice(["gaussian", "uniform", "laplace", "exponential"]))
        ends = {"uniform": (middle - width, middle + width), "exponential": (width,)}
        return builder.real(kind, v, *ends.get(kind, (middle, width)))

    def state() -> int:
        return builder.categorical(2, log_weights=np.log(rng.dirichlet(np.ones(3))).tolist())

    def parts(k: int) -> list[int]:
        pairs = [builder.product([state(), x(3)]) for _ in range(3)]
        inner = builder.sum(pairs, log_weights=np.log(rng.dirichlet(np.ones(3))).tolist())
        count = builder.real("poisson", 1, float(rng.uniform(0.2, 6.0)))
        return [x(0), count, inner] if k else [builder.product([x(0), count]), inner]

    k = int(rng.integers(2, 4))
    builder.sum(
        [builder.product(parts(j)) for j in range(k)], log_weights=np.log(rng.dirichlet(np.ones(k))).tolist()
    )
    return CircuitPosterior.from_circuit(builder.build(normalised=False), make_query(domain))


def places(low: float, high: float, extra: list[float], whole: bool) -> np.ndarray:
    """Places of an interval that matter: ends, jumps, peaks and their neighbours, or whole numbers."""
    a, b = max(low, -6.0), min(high, 6.0)
    tried = np.concatenate([np.linspace(a, b, 9), extra, np.nextafter(extra, -9.0), np.nextafter(extra, 9.0)])
    tried = np.unique(np.round(tried) if whole else tried)
    return tried[(tried >= low) & (tried <= high)]


def check_places(seed: int, n_boxes: int, most: int) -> None:
    """Probe boxes, with caps and without, and compare with places inside, so many along each axis at most."""
    rng = np.random.default_rng([29, seed])
    posterior = real_circuit(rng)
    plan = posterior.plan
    caps = Caps(PlanProber(plan, 1).view, 1e-3, max_boxes=int(rng.choice([2, 40])))
    caps.advance(10**9)
    offsets = np.array([0, 2, 4, 7, 9])
    mask = (rng.random((n_boxes, 9)) < 0.7).astype(np.uint8)
    mask[:, [0, 1, 2, 3, 7, 8, 4 + int(rng.integers(3))]] = 1
    ends = np.sort(rng.choice([-math.inf, *range(-3, 5), math.inf], (2, n_boxes, 4)), axis=0)
    low = np.where(ends[0] == math.inf, 4.0, ends[0])
    high = np.maximum(np.where(ends[1] == -math.inf, -3.0, ends[1]), low + rng.choice([0.0, 2.0], (n_boxes, 4)))
    low[:, 1], high[:, 1] = np.maximum(low[:, 1], 0.0), np.maximum(high[:, 1], 0.0)
    mask[0], low[0], high[0] = 1, [-math.inf, 0.0, 0.0, -math.inf], math.inf
    jumps = [float(x) for x in np.unique(plan.tables) if abs(x) < 6.0]
    for log_caps in (None, caps.log_caps):
        got = PlanProber(plan, 1, log_caps).probe(SearchBoxes(mask, low, high))
        for row in range(n_boxes):
            axes = []
            for v in range(4):
                split = got.splits[row, v]
                extra = [*rng.permutation(jumps)[:4], *([split] if np.isfinite(split) else [])]
                tried = places(low[row, v], high[row, v], extra, v == 1)
                axes.append(
                    np.flatnonzero(mask[row, 4:7]).astype(float) if v == 2 else rng.permutation(tried)[:most]
                )
            points = np.array(list(itertools.product(*axes)))
            values = posterior.log_prob(points) if len(points) else np.zeros(0)
            assert got.log_bound[row] >= values.max(initial=-math.inf) - 1e-12
            for v in (0, 1, 3):
                upper = points[:, v] > got.splits[row, v] if len(points) else np.zeros(0, np.bool_)
                for side, inside in enumerate((~upper, upper)):
                    top = values[inside].max(initial=-math.inf)
                    assert got.each_bound[row, offsets[v] + side] >= top - 1e-12
            for state in np.flatnonzero(mask[row, 4:7]) if len(points) else ():
                assert got.each_bound[row, 4 + state] >= values[points[:, 2] == state].max() - 1e-12


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="takes long")
@pytest.mark.parametrize("seed", range(10))
def test_no_place_of_a_box_of_densities_is_above_its_bound_or_a_cap(seed: int) -> None:
    check_places(seed, 12, 12)


@pytest.mark.nojit
def test_no_place_of_a_few_boxes_is_above_their_bounds() -> None:
    for seed in (100, 101):
        check_places(seed, 6, 5)


def hidden_peak(seed: int, n: int, size: int) -> CircuitPosterior:
    """A mixture of broad products and, last, narrow ones, whose peaks are where hardly any climb ends."""
    rng, k = np.random.default_rng([43, seed, size]), 12
    builder = CircuitBuilder(Domain.of_sizes([size] * n))
    tables = rng.dirichlet(np.full(size, 4.0), (k, n))
    tables[-2:] = 0.02 + 0.94 * np.eye(size)[rng.integers(size, size=(2, n))]
    parts = [
        builder.product([builder.categorical(v, log_weights=np.log(t[v]).tolist()) for v in range(n)])
        for t in tables
    ]
    builder.sum(parts, log_weights=np.log([1.0] * (k - 2) + [0.1, 0.15]).tolist())
    return CircuitPosterior.from_circuit(builder.build(normalised=False), make_query(builder.domain))


@pytest.mark.nojit
@pytest.mark.parametrize(("n", "size", "seeds"), [(6, 2, (20, 24, 26)), (5, 3, (8, 12))])
def test_a_cap_is_above_the_best_point_that_no_climb_finds(n: int, size: int, seeds: tuple[int, ...]) -> None:
    """Where no box more may be opened, or none more has room, what is left open may not be forgotten."""
    n_missed = 0
    for seed in seeds:
        posterior = hidden_peak(seed, n, size)
        best = posterior.log_prob(all_points(posterior.domain)).max()
        view = PlanView.of(posterior.plan)
        for max_boxes, n_rows in ((1, 9), (2000, 4), (2000, 999)):
            caps = Caps(view, 1e-9, max_boxes=max_boxes)
            pool = make_pool(view)
            if n_rows < len(pool.bound):
                rows = (pool.mask, pool.low, pool.high, pool.bound, pool.entries)
                caps._pool = pool._replace(**dict(zip(pool._fields, (a[:n_rows] for a in rows), strict=False)))
            caps.advance(10**9)
            assert caps.log_caps[-1] >= best - 1e-13
            n_missed += caps.table.values[-1] < best - 1e-6
        assert caps.log_caps[-1] == pytest.approx(best, abs=1e-8)
    assert n_missed >= len(seeds)  # without the search


@pytest.mark.nojit
@pytest.mark.parametrize("max_boxes", [1, 4, 300])
def test_a_cap_over_real_variables_is_above_a_peak_that_no_climb_finds(max_boxes: int) -> None:
    rng = np.random.default_rng(47)
    builder = CircuitBuilder(Domain([Real("x"), Real("y")]))
    places = [*rng.uniform(-3.0, 3.0, (9, 2)).tolist(), [2.5, -2.5], [-1.7, 2.9]]
    sds = [1.0] * 9 + [0.05, 0.06]
    parts = [
        builder.product([builder.gaussian(v, at[v], sd) for v in (0, 1)])
        for at, sd in zip(places, sds, strict=True)
    ]
    builder.sum(parts, log_weights=np.log([0.1] * 9 + [0.04, 0.06]).tolist())
    posterior = CircuitPosterior.from_circuit(builder.build(normalised=False), make_query(builder.domain))
    best = posterior.log_prob(np.array(places)).max()
    caps = Caps(PlanView.of(posterior.plan), 1e-3, max_boxes=max_boxes)
    caps.advance(10**9)
    assert caps.log_caps[-1] >= best - 1e-12
    assert (caps.table.values[-1] < best - 1.0) == (max_boxes == 1)
    assert max_boxes < 300 or caps.complete
