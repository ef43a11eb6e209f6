"""Checks whether ledgers of several searches may be merged, and combines their bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from certimap.core.box import Boxes
from certimap.core.domain import Domain
from certimap.errors import SolverError, UnbalancedBooks

Proof = tuple[float, str, bool]  # ln of an upper bound, prover, whether it is this package's


def check_alike(names: Sequence[str], settings: Sequence[Sequence[object]]) -> None:
    """Raise SolverError, naming the first difference, if ledgers have different settings."""
    for name, values in zip(names, zip(*settings, strict=True), strict=True):
        if any(value != values[0] for value in values):
            shown = ", ".join(dict.fromkeys(f"{value}" for value in values))
            raise SolverError(f"ledgers to be merged have different {name} ({shown}); the same are expected")


def is_partition(domain: Domain, parts: Sequence[Boxes | None], whole: Boxes | None) -> bool:
    """Return True if the parts split the whole, False if each part is the whole.

    Raises
    ------
    UnbalancedBooks
        In any other case, counted exactly.
    """
    full = Boxes.full(domain)
    target = full if whole is None else whole
    boxes = [full if part is None else part for part in parts]
    if all(_same(box, target) for box in boxes):
        return False
    if not domain.is_discrete:
        raise UnbalancedBooks(
            "ledgers of parts of a space with real variables cannot be merged; each must cover all"
        )
    masks = np.concatenate([box.mask for box in boxes])
    n_points = sum(Boxes(domain, masks).sizes())
    inside = not np.any(masks & ~target.mask)
    if not inside or n_points != target.sizes()[0] or not _are_disjoint(domain, masks):
        raise UnbalancedBooks(
            f"the boxes of {len(parts)} ledgers are neither the space to be covered each, nor a split of it into "
            "disjoint boxes"
        )
    return True


def _same(one: Boxes, other: Boxes) -> bool:
    if not np.array_equal(one.mask, other.mask):
        return False
    if one.low is None or other.low is None or one.high is None or other.high is None:
        return True
    return np.array_equal(one.low, other.low) and np.array_equal(one.high, other.high)


def _are_disjoint(domain: Domain, masks: np.ndarray) -> bool:
    """Whether no two boxes share a point; time quadratic in their number."""
    for i in range(1, len(masks)):
        common = np.add.reduceat(masks[:i] & masks[i], domain.offsets[:-1], axis=1, dtype=np.int64)
        if np.any(np.all(common > 0, axis=1)):
            return False
    return True


def smallest_proof(proofs: Sequence[Proof | None]) -> Proof | None:
    """Return the smallest of several bounds on one maximum."""
    known = [proof for proof in proofs if proof is not None]
    return min(known, key=lambda proof: proof[0]) if known else None


def joint_proof(parts: Sequence[tuple[float, Proof | None]], log_seen: float) -> Proof | None:
    """Combine external proofs, one per part, into a bound on the whole; None if they add nothing.

    Parameters
    ----------
    parts
        For each part, its ledger's own log bound on unevaluated points, and the external proof.
    log_seen
        The largest upper bound of an evaluated point.
    """
    used = [proof for log_unseen, proof in parts if proof is not None and proof[0] < log_unseen]
    if not used:
        return None
    value = max(min(log_unseen, math.inf if proof is None else proof[0]) for log_unseen, proof in parts)
    names = dict.fromkeys(name for _, name, _ in used)
    return max(value, log_seen), ", ".join(names), all(is_own for _, _, is_own in used)
