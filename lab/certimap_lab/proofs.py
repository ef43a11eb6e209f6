"""Proofs under attack: random small models, what every solver proves of them, and what becomes of altered proofs.

One rule judges everything: a proof that is accepted must state the truth, which enumeration knows. Proofs as they
were written must be accepted, and those about another model, or that are cut short, must not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.ask.api import condition, map_query
from certimap.checker import Proof
from certimap.checker.network import boxes_beside
from certimap.core.arguments import Record
from certimap.core.constraints import constraints_of
from certimap.core.control import Control
from certimap.core.domain import Categorical, Domain, Label, Real
from certimap.core.model import Model
from certimap.core.query import make_query
from certimap.core.result import MapResult
from certimap.errors import CertimapError
from certimap.proofs import check, with_answers
from certimap.proofs.relaxations import covered, order_of_values
from certimap.proofs.script import Script
from certimap.proofs.steps import steps_of
from certimap.testing.models import all_points, random_circuit, random_network
from certimap_lab.constraints import all_hold, forged, random_constraints

EPSILONS = (0.0, 0.05, 0.3)  # tolerances of random cases
ON_CIRCUITS = ("auto", "exhaustive", "frontier", "pac")
ON_NETWORKS = (*ON_CIRCUITS, "set_elimination", "bucket_elimination", "hbfs", "aobb", "aobf")
MARGIN = 1e-7  # relative; altered answers that are closer to the best may be accepted
MANY = 2**20  # entries of an array that no proof of a small model has
NEEDED = (
    "splits",
    "steps",
    "kept",
    "cap_nodes",
    "cap_splits",
    "cap_kept",
    "log_weights",
    "log_open",
    "log_closed",
)


@dataclass(frozen=True, eq=False)
class Case:
    """A query to a small model, with what enumeration says of it.

    Attributes
    ----------
    log_values
        ln p(q | e) of every joint state of the query, the last variable varying fastest.
    constraints
        What an answer satisfies, as JSON.
    """

    model: Model
    variables: list[str]
    evidence: dict[str, Any]
    log_values: NDArray[np.float64]
    constraints: Sequence[Record] = ()

    def is_true(self, proof: Proof) -> bool:
        """Whether a claim with delta 0 holds, the tolerance and a little more granted."""
        claim, domain = proof.meta["claim"], self.model.domain
        log_values = self.feasible(proof.meta.get("constraints", []))
        states = [states_of(domain, name).index(label) for name, label in proof.meta["answer"].items()]
        sizes = [len(states_of(domain, name)) for name in proof.meta["answer"]]
        place = int(np.ravel_multi_index(states, sizes))
        slack = math.log1p(claim["tolerance"]) - math.log1p(-claim["epsilon"]) + MARGIN * 0.01
        return bool(log_values[place] >= max(float(log_values.max()), -1e300) - slack)

    @property
    def states(self) -> dict[str, tuple[Label, ...]]:
        """The states of the query variables, and those of observed ones; real ones are left out."""
        seen = [name for name, given in self.evidence.items() if not isinstance(given, dict)]
        variables = (self.model.domain[name] for name in (*self.variables, *seen))
        return {v.name: v.states for v in variables if isinstance(v, Categorical)}

    def feasible(self, constraints: Sequence[Record]) -> NDArray[np.float64]:
        """Return the log values of joint states under constraints: -inf where one does not hold."""
        if not constraints:
            return self.log_values
        states = [self.states[name] for name in self.variables]
        points = (dict(zip(self.variables, point, strict=True)) for point in itertools.product(*states))
        flags = [all_hold(constraints, {**self.evidence, **point}) for point in points]
        return np.where(flags, self.log_values, -np.inf)


def states_of(domain: Domain, name: str) -> tuple[Label, ...]:
    """Return the states of a categorical variable."""
    variable = domain[name]
    assert isinstance(variable, Categorical)
    return variable.states


def random_case(seed: int, *, hard: bool = False, constrained: bool = False) -> Case:
    """Return case number `seed`; odd ones ask networks. Hard ones leave a search something to do.

    Constrained ones have one to three constraints that some possible joint state satisfies.
    """
    rng = np.random.default_rng([seed, 5])
    while True:
        model = _random_model(rng, seed % 2 == 1, hard)
        domain = model.domain
        order = [domain.names[int(i)] for i in rng.permutation(len(domain))]
        if hard and seed % 2:
            order = list(domain.names)[::-1]  # what is summed out are causes, which nothing makes disappear
        n_query = int(rng.integers(1, len(order) + 1)) if not hard else (len(order) + 1) // (1 + seed % 2)
        n_observed = int(rng.integers(0, len(order) - n_query + 1)) if not hard else 0
        evidence = {name: _evidence(rng, domain, name) for name in order[n_query : n_query + n_observed]}
        variables = order[:n_query]
        try:
            listed = condition(model, variables, evidence, workers=1, solver="pac")
        except CertimapError:
            continue  # evidence of probability 0
        case = Case(model, variables, evidence, listed.log_prob(all_points(listed.domain)))
        if not constrained:
            return case
        said = random_constraints(rng, case.states, int(rng.integers(1, 4)))
        if case.feasible(said).max() > -np.inf:
            return replace(case, constraints=said)


def _random_model(rng: np.random.Generator, is_network: bool, hard: bool) -> Model:
    if hard:
        sizes = rng.integers(2, 4, 14) if is_network else np.full(9, 2)
    else:
        top = int(rng.choice([3, 5]))  # few states and many variables, or the other way round
        sizes = rng.integers(1, top, int(rng.integers(2, 13 if top == 3 else 7)))
    domain = Domain.of_sizes(int(k) for k in sizes)
    if is_network:
        return random_network(rng, domain, max_parents=3 if hard else 2, zeros=0.0 if hard else 0.1)
    return random_circuit(rng, domain, n_components=5 if hard else 3, zeros=0.0 if hard else 0.2)


def _evidence(rng: np.random.Generator, domain: Domain, name: str) -> Any:
    states = states_of(domain, name)
    if rng.random() < 0.7:
        return states[int(rng.integers(len(states)))]
    return {"likelihood": [float(w) for w in rng.gamma(1.0, size=len(states)) + 1e-3]}


def solved(
    case: Case, solver: str, *, epsilon: float = 0.0, delta: float = 0.0, seed: int = 0, **options: Any
) -> MapResult:
    """Answer a case and keep the proof; a search by boxes gets few draws, lest they meet every point."""
    if solver == "frontier":
        options = {"first_draws": 4, **options}
    if case.constraints:
        options = {"constraints": case.constraints, **options}
    return map_query(
        case.model,
        case.variables,
        case.evidence,
        solver=solver,
        epsilon=epsilon,
        delta=delta,
        rng=seed,
        proof=True,
        workers=1,
        progress=False,
        max_samples=20_000,
        **options,
    )


def each_solved(case: Case, seed: int, rng: np.random.Generator) -> Iterator[tuple[str, MapResult]]:
    """Yield the solvers of a random case with their answers, at tolerances drawn from `rng`."""
    for solver in ON_NETWORKS if seed % 2 else ON_CIRCUITS:
        epsilon, delta = float(rng.choice(EPSILONS)), 0.05 if solver == "pac" else 0.0
        yield solver, solved(case, solver, epsilon=epsilon, delta=delta, seed=seed)


def by_steps(case: Case, proof: Proof, most_entries: float, relaxed: bool = False) -> Proof | None:
    """Return the proof by steps of what another one proves of a network, split until eliminations are small.

    `relaxed`: one that eliminates in groups of tables of four entries, and splits until that closes.
    """
    claim = proof.meta["claim"]
    query = make_query(
        case.model.domain, case.variables, case.evidence, constraints=constraints_of(case.constraints)
    )
    checked, (point,) = with_answers(case.model, query, [proof.meta["answer"]])
    boxes, control = boxes_beside(checked, [point]), Control.starting_now(600.0)
    script = Script(
        claim["log_joint"] - math.log1p(-claim["epsilon"]) + math.log1p(claim["tolerance"]),
        control,
        max_bytes=10**8,
        quick_entries=0.0,
        most_entries=most_entries,
        sum_bits=-1.0,
        table_bits=(2.0,),
    )
    if relaxed:
        found = covered(checked, boxes, script)
        arrays = found[0] if found is not None and found[1] <= script.threshold else None
    else:
        arrays = steps_of(checked, boxes, script, point)
    if arrays is None:
        return None
    order = np.array(order_of_values(checked, control), np.int32)
    meta = {**proof.meta, "method": "steps"}
    return Proof(meta, {"log_weights": proof.arrays["log_weights"], "order": order, **arrays})


def altered(proof: Proof, case: Case, rng: np.random.Generator) -> Iterator[tuple[str, Proof, bool]]:
    """Yield altered proofs, what was done, and whether they have to be rejected whatever is true."""
    meta, arrays = proof.meta, proof.arrays
    claim = meta["claim"]
    yield "another model's fingerprint", Proof({**meta, "model": "sha256:" + "0" * 64}, arrays), True
    silent = {**meta, "claim": {**claim, "log_joint": None}}
    for name in meta["answer"]:
        label = _another(case.model.domain, name, meta["answer"][name], rng)
        swapped = {**silent, "answer": {**meta["answer"], name: label}}
        yield "a swapped label", Proof(swapped, arrays), False
    unknown = {**meta, "answer": {**meta["answer"], next(iter(meta["answer"])): "no such state"}}
    yield "an unknown label", Proof(unknown, arrays), True
    for what, change, must_fail in (
        ("a wrong value", {"log_joint": claim["log_joint"] + 1e-3}, True),
        ("a lower epsilon", {"kind": "exact", "epsilon": 0.0}, False),
        ("no tolerance", {"tolerance": 0.0}, True),
    ):
        yield what, Proof({**meta, "claim": {**claim, **change}}, arrays), must_fail
    for key in ("claim", "answer", "method", "model"):
        yield f"no {key}", Proof({k: v for k, v in meta.items() if k != key}, arrays), True
    for name, values in arrays.items():
        short = {**arrays, name: values[:-1]}
        if len(values):
            yield f"{name} cut short", Proof(meta, short), name in NEEDED
        left = {k: v for k, v in arrays.items() if k != name}
        yield (
            f"no {name}",
            Proof(meta, left),
            name not in ("cap_nodes", "at"),
        )  # caps may be needless, and cuts none
    for what, said in forged(rng.spawn(1)[0], meta.get("constraints", []), case.states):
        yield what, Proof({**silent, "constraints": said}, arrays), False
    yield from _hostile(proof)
    if "intervals" in arrays:
        yield from _other_intervals(proof, case)
    if "splits" in arrays:
        yield from _other_trees(proof)
    if "cap_nodes" in arrays:
        yield from _other_caps(proof, rng)
    if "plan" in arrays:
        yield from _other_vectors(proof, rng)
    if "steps" in arrays:
        yield from _other_steps(proof, rng)
    if "points" in arrays:
        again = np.concatenate([arrays["points"], arrays["points"][:1]])
        yield "a point listed twice", Proof(meta, {**arrays, "points": again}), True
    if "counts" in arrays and claim["delta"] > 0.0:
        few = {**arrays, "counts": arrays["counts"] // 4}
        yield "fewer draws", Proof(meta, few), True


def _hostile(proof: Proof) -> Iterator[tuple[str, Proof, bool]]:
    """Put what is no number into each numeric field, and many entries into each array."""
    claim = proof.meta["claim"]
    for name in ("epsilon", "delta", "tolerance", "log_joint"):
        for number in (math.nan, math.inf, -math.inf):
            forged = {**proof.meta, "claim": {**claim, name: number}}
            yield f"the {name} {number}", Proof(forged, proof.arrays), True
    for name, values in proof.arrays.items():
        many = np.full(MANY, 1, values.dtype)
        yield f"{MANY} entries of {name}", Proof(proof.meta, {**proof.arrays, name: many}), True
        for number in (math.nan, math.inf) if values.dtype == np.float64 and values.size else ():
            filled = np.full_like(values, number)
            yield f"{name} of {number}", Proof(proof.meta, {**proof.arrays, name: filled}), True


def _another(domain: Domain, name: str, label: Any, rng: np.random.Generator) -> Any:
    """Return a state of a variable, or for a real one a number near its value or far from it."""
    if isinstance(domain[name], Real):
        return label + float(rng.normal()) * 10.0 ** float(rng.integers(-7, 2))
    states = states_of(domain, name)
    return states[int(rng.integers(len(states)))]


def _other_intervals(proof: Proof, case: Case) -> Iterator[tuple[str, Proof, bool]]:
    """Confine the real variables of the answer to where it is not."""
    domain = case.model.domain
    for name, value in proof.meta["answer"].items():
        if isinstance(domain[name], Real):
            beside = proof.arrays["intervals"].copy()
            beside[domain.index(name)] = value + 1.0, value + 2.0
            yield (
                "evidence that excludes the answer",
                Proof(proof.meta, {**proof.arrays, "intervals": beside}),
                True,
            )
            beside = beside.copy()
            beside[domain.index(name)] = value + 1.0, value - 1.0
            yield "an empty interval", Proof(proof.meta, {**proof.arrays, "intervals": beside}), True
            beside = beside.copy()
            beside[domain.index(name)] = np.nan
            yield "an interval of no numbers", Proof(proof.meta, {**proof.arrays, "intervals": beside}), True


def _other_trees(proof: Proof) -> Iterator[tuple[str, Proof, bool]]:
    splits, kept = proof.arrays["splits"], proof.arrays["kept"]
    leaf = {**proof.arrays, "splits": np.array([-1], np.int32), "kept": kept[:0]}
    yield "no splits", Proof(proof.meta, leaf), False
    if len(splits) > 1:
        yield "a missing box", Proof(proof.meta, {**proof.arrays, "splits": splits[:-1]}), True
        yield "a box too many", Proof(proof.meta, {**proof.arrays, "splits": np.append(splits, splits[-1:])}), True
        other = {**proof.arrays, "kept": np.zeros_like(kept)}
        yield "states dropped without cause", Proof(proof.meta, other), len(kept) > 0


def _other_vectors(proof: Proof, rng: np.random.Generator) -> Iterator[tuple[str, Proof, bool]]:
    """Alter what becomes of boxes and vectors: which are listed, what they go for, what is put together."""
    arrays = proof.arrays
    for name in ("plan", "sizes", "listed", "gone", "lengths", "members", "counts", "groups"):
        if arrays[name].size:
            other = arrays[name].astype(np.int32)
            other.flat[rng.integers(other.size)] = rng.integers(-1, int(other.max()) + 3)
            yield f"another entry of {name}", Proof(proof.meta, {**arrays, name: other}), False
            wide = arrays[name].astype(np.uint64)
            yield f"{name} of 64 bits", Proof(proof.meta, {**arrays, name: wide}), True
    for what, act in (("a box closed at once", 0), ("a box split", 2), ("a box split on nothing", 1000)):
        plan = np.concatenate([np.array([act], np.int32), arrays["plan"]])
        yield what, Proof(proof.meta, {**arrays, "plan": plan}), act != 2


def _other_steps(proof: Proof, rng: np.random.Generator) -> Iterator[tuple[str, Proof, bool]]:
    """Alter steps, shifts and states dropped; shifts may be any, for the bounds are the checker's own."""
    arrays = proof.arrays
    steps, shifts, kept = arrays["steps"], arrays["shifts"], arrays["kept"]
    yield "a part not closed", Proof(proof.meta, {**arrays, "steps": steps[:-1]}), True
    yield "a step too many", Proof(proof.meta, {**arrays, "steps": np.append(steps, np.int32(0))}), True
    for _ in range(4):
        other = steps.copy()
        other[rng.integers(len(steps))] = rng.integers(-1, 9)
        yield "another step", Proof(proof.meta, {**arrays, "steps": other}), False
    if len(shifts):
        yield (
            "a shift that is no number",
            Proof(proof.meta, {**arrays, "shifts": np.full_like(shifts, np.nan)}),
            True,
        )
        yield "a shift too large", Proof(proof.meta, {**arrays, "shifts": np.full_like(shifts, 1e200)}), True
        moved = shifts.copy()
        moved[rng.integers(len(shifts))] += rng.normal(0.0, 3.0)
        yield "a shift changed", Proof(proof.meta, {**arrays, "shifts": moved}), False
        yield "no shifts", Proof(proof.meta, {**arrays, "shifts": np.zeros_like(shifts)}), False
    if len(kept):
        yield "states dropped without cause", Proof(proof.meta, {**arrays, "kept": np.zeros_like(kept)}), False
        yield "states not dropped", Proof(proof.meta, {**arrays, "kept": np.full_like(kept, 255)}), False


def _other_caps(proof: Proof, rng: np.random.Generator) -> Iterator[tuple[str, Proof, bool]]:
    """Alter the trees that bound subcircuits; they may lead anywhere, for the bounds are the checker's own."""
    arrays = proof.arrays
    nodes, kinds, kept = arrays["cap_nodes"], arrays["cap_splits"], arrays["cap_kept"]
    for what, change, must_fail in (
        ("a cap's box too many", {"cap_splits": np.append(kinds, kinds[-1:])}, True),
        ("a cap of no sum", {"cap_nodes": np.append(nodes[:-1], np.int32(10**6))}, True),
        ("a cap twice", {"cap_nodes": np.append(nodes, nodes[-1:])}, True),
        ("caps of other sums", {"cap_nodes": rng.permutation(nodes)}, False),
        ("caps that split nothing", {"cap_splits": np.full_like(kinds, -1)}, False),
        ("caps that drop everything", {"cap_kept": np.zeros_like(kept)}, False),
        ("caps that drop nothing", {"cap_kept": np.full_like(kept, 255)}, False),
        ("caps that split elsewhere", {"cap_splits": rng.permutation(kinds)}, False),
    ):
        yield what, Proof(proof.meta, {**arrays, **change}), must_fail


def failures(case: Case, proof: Proof, rng: np.random.Generator) -> list[str]:
    """Return what goes wrong with a proof and its alterations; nothing should."""
    found: list[str] = []
    verdict = check(case.model, proof)
    if not verdict.accepted:
        found.append(f"a valid proof was not accepted: {verdict.message}")
    for what, changed, must_fail in altered(proof, case, rng):
        try:
            verdict = check(case.model, changed)
        except Exception as error:
            found.append(f"{what}: {type(error).__name__} instead of a verdict: {error}")
            continue
        if verdict.accepted and (must_fail or not _holds(case, changed)):
            found.append(f"{what}: accepted ({verdict.message})")
    return found


def _holds(case: Case, proof: Proof) -> bool:
    return proof.meta["claim"]["delta"] > 0.0 or case.is_true(proof)
