"""What has proof files checked."""

from __future__ import annotations

import os
from typing import Any

from certimap.checker import Proof, Verdict, check_arrays
from certimap.core.model import Model
from certimap.errors import QueryError
from certimap.io.native import exported


def check(
    model: Any,
    proof: Proof | str | os.PathLike[str],
    *,
    exact: bool = False,
    time_limit: float | None = None,
) -> Verdict:
    """Check a proof by code that shares nothing with what found the answer; see `docs/proofs.md`.

    Parameters
    ----------
    model
        The model that the answer is about.
    proof
        A proof (`result.proof`) or the path of its file.
    exact
        Check a small model by enumeration in exact numbers too.
    time_limit
        Seconds after which the check gives up, and rejects the proof for want of time; None: none.

    Returns
    -------
    Verdict
        True where the claim is proved; its `message` says what is, or which step fails.

    Raises
    ------
    ParseError
        When the file is no proof.
    ModelError
        For a model that has no plain arrays.
    QueryError
        For what is no model, and a limit that is no time.
    """
    if not isinstance(model, Model):
        raise QueryError(f"a {type(model).__name__} is no model; a proof is checked against the model it is about")
    if time_limit is not None and not time_limit > 0.0:
        raise QueryError(f"time_limit is {time_limit}; expected seconds above 0, or None for no limit")
    found = proof if isinstance(proof, Proof) else Proof.read(proof)
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, found, hidden=hidden, exact=exact, time_limit=time_limit)
