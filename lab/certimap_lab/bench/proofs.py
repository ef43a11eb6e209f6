"""Proofs on trial: thousands of small ones with their alterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from certimap.checker import Proof
from certimap_lab.proofs import EPSILONS, Case, altered, by_steps, each_solved, failures, random_case, solved
from certimap_lab.real_proofs import random_real_case

MOST_ENTRIES = (
    0.0,
    2.0**28,
)  # of eliminations that proofs by steps end in: they split all that bounds do not close
Told = Callable[[str], None]


@dataclass
class Trial:
    """What the proofs of random small models came to.

    Attributes
    ----------
    n_proofs, n_altered
        How many proofs were written, and how many alterations of them were tried.
    n_without
        How many certified answers about real variables got no proof in time.
    methods
        How many proofs there were by each method.
    failing
        What went wrong, in words.
    """

    n_proofs: int = 0
    n_altered: int = 0
    n_without: int = 0
    methods: Counter[str] = field(default_factory=Counter[str])
    failing: list[str] = field(default_factory=list[str])


def try_models(n_models: int, seed: int = 0, tell: Told = print) -> Trial:
    """Put models number `seed` on to every solver; check their proofs as written and altered."""
    trial = Trial()
    for number in range(seed, seed + n_models):
        case, rng = random_case(number, constrained=number % 3 == 0), np.random.default_rng([number, 6])
        for solver, result in each_solved(case, number, rng):
            proof = result.proof
            if proof is None:
                continue
            proofs = [proof]
            if number % 2 and solver == "set_elimination":
                stepwise = [by_steps(case, proof, most) for most in MOST_ENTRIES]
                proofs += [p for p in (*stepwise, by_steps(case, proof, 0.0, relaxed=True)) if p is not None]
            for one in proofs:
                _attack(trial, case, one, rng, f"model {number}, solver {solver}", tell)
        _try_real(trial, number, tell)
    return trial


def _try_real(trial: Trial, number: int, tell: Told) -> None:
    """Ask a model with real variables; searches for a proof that do not end are counted, and no failures."""
    case, rng = random_real_case(number), np.random.default_rng([number, 8])
    result = solved(case, "auto", epsilon=float(rng.choice(EPSILONS)), seed=number)
    if result.proof is not None:
        _attack(trial, case, result.proof, rng, f"real model {number}", tell)
    elif result.certified:
        trial.n_without += 1
        tell(f"real model {number}: no proof, for {result.no_proof}")


def _attack(trial: Trial, case: Case, proof: Proof, rng: np.random.Generator, name: str, tell: Told) -> None:
    trial.n_proofs += 1
    trial.n_altered += sum(1 for _ in altered(proof, case, rng))
    trial.methods[proof.meta["method"]] += 1
    for text in failures(case, proof, rng):
        trial.failing.append(f"{name}: {text}")
        tell(trial.failing[-1])
