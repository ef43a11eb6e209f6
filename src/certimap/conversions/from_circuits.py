"""The representations of a circuit: unchanged, conditioned, as a tree if structured, as a mixture of trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.posterior import CircuitPosterior, GuessedCircuit
from certimap.conversions.choose import OF_CIRCUIT, OF_TREE, Case, Estimate, Row, once
from certimap.conversions.circuit_to_tree import (
    MAX_SPREAD,
    TreeMixturePosterior,
    tree_of_circuit,
    trees_of_circuit,
)
from certimap.core.control import Control, TimeUp
from certimap.core.posterior import Guesses, Posterior
from certimap.errors import ModelError
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.tree_sum import TreeSum

MIN_MIXTURE = 5_500  # below this number of edges, searching the circuit takes less time than finding trees


@once
def _conditioned(case: Case[Circuit]) -> CircuitPosterior:
    limits = case.limits
    return CircuitPosterior.from_circuit(
        case.model, case.query, max_edges=limits.edges_allowed, workers=limits.workers, control=limits.control
    )


def _size(case: Case[Circuit]) -> Estimate:
    n_edges = case.model.n_edges
    return Estimate(f"{n_edges} edges", n_edges, n_edges <= case.limits.edges_allowed)


def _tree_of(case: Case[Circuit], max_table: int, control: Control | None = None) -> BucketTreePosterior | None:
    """Return the tree, or None if the circuit is not structured or the tables do not fit."""
    posterior = _conditioned(case)
    return case.shared(
        f"tree of {max_table}",
        lambda: tree_of_circuit(
            posterior.plan,
            log_evidence=posterior.log_evidence,
            max_table=max_table,
            workers=posterior.workers,
            control=control or case.limits.control,
        ),
    )


def _best_limit(case: Case[Circuit]) -> int:
    """Return the number of table entries up to which a tree is better than the circuit."""
    return min(case.limits.table_allowed, MAX_SPREAD * _conditioned(case).plan.n_edges)


def _half(control: Control) -> Control:
    """Return the control of work that may take half of the time left."""
    left = control.seconds_left
    return replace(control, deadline=None if control.deadline is None else control.deadline - 0.5 * left)


def _tree_suits(case: Case[Circuit]) -> bool:
    """Whether `auto` may take the tree, which gets half of the remaining time: the circuit has an answer too.

    If a sum decides a query variable, the circuit's own bounds are sharp, and searches on it close at once.
    """
    if not _size(case).fits or np.any(_conditioned(case).plan.decides >= 0):
        return False
    try:
        return _tree_of(case, _best_limit(case), _half(case.limits.control)) is not None
    except TimeUp:
        return False


def _tree_size(case: Case[Circuit]) -> Estimate:
    if not _size(case).fits:
        return _size(case)
    tree = _tree_of(case, _best_limit(case)) or _tree_of(case, case.limits.table_allowed)
    if tree is None:
        text = "the circuit is not structured, or its tables are too large"
        return Estimate(text, 0.0, fits=False, exists=False)
    n_entries = tree.region_tree.n_entries
    return Estimate(f"{n_entries} table entries", n_entries, fits=True)


def _tree(case: Case[Circuit]) -> Posterior:
    tree = _tree_of(case, _best_limit(case)) or _tree_of(case, case.limits.edges_allowed)
    if tree is None:
        raise ModelError(_tree_size(case).text)
    return tree


@once
def _trees_of(case: Case[Circuit]) -> TreeSum | None:
    """Return the conditioned circuit as a sum of trees; None if it is not one, is small, or time is short."""
    if _conditioned(case).plan.n_edges < MIN_MIXTURE:
        return None
    try:
        return trees_of_circuit(_conditioned(case).plan, _half(case.limits.control))
    except TimeUp:
        return None


def _trees_size(case: Case[Circuit]) -> Estimate:
    size = _size(case)
    trees = _trees_of(case) if size.fits else None
    if trees is None:
        return replace(size, text="the circuit is no large mixture of structured ones", fits=False, exists=False)
    text = f"{len(trees.trees)} trees of {trees.n_entries} table entries in all"
    return Estimate(text, _conditioned(case).n_edges, fits=True)


def _trees(case: Case[Circuit]) -> Posterior:
    trees = _trees_of(case)
    if trees is None:
        raise ModelError(_trees_size(case).text)
    return TreeMixturePosterior(_conditioned(case), trees, case.limits.control)


def _guessed(case: Case[Circuit]) -> Posterior:
    return GuessedCircuit.of(case.model, case.query)


ROWS = (
    Row("mixture of trees", Circuit, OF_CIRCUIT | {TreeMixturePosterior}, _trees_size, _trees),
    Row("circuit", Circuit, OF_CIRCUIT, _size, _conditioned, is_kept=True),
    Row("tree of the circuit", Circuit, OF_TREE, _tree_size, _tree, _tree_suits, is_kept=True),
    Row("circuit as it is", Circuit, frozenset({Guesses, GuessedCircuit}), _size, _guessed, lambda case: False),
)
