"""What has proof files checked."""

from __future__ import annotations

import os
from typing import Any

from certimap.checker import Proof, Verdict, check_arrays
from certimap.core.result import MapResult
from certimap.core.untyped import is_path
from certimap.errors import ParseError, QueryError
from certimap.interop import as_model
from certimap.io.files import suffix_of
from certimap.io.formats import FORMATS
from certimap.io.native import exported


def check(
    model: Any,
    proof: Proof | MapResult | str | os.PathLike[str],
    *,
    exact: bool = False,
    time_limit: float | None = None,
) -> Verdict:
    """Check a proof by code that shares nothing with what found the answer; see `docs/proofs.md`.

    Parameters
    ----------
    model
        The model that the answer is about, or one of another library (see `certimap.from_object`).
    proof
        A proof (`result.proof`), a result that has one, or the path of a proof file.
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
    model = as_model(model)
    if time_limit is not None and not time_limit > 0.0:
        raise QueryError(f"time_limit is {time_limit}; expected seconds above 0, or None for no limit")
    found = _proof_of(proof)
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, found, hidden=hidden, exact=exact, time_limit=time_limit)


def _proof_of(given: Any) -> Proof:
    """Return the proof that a user means; refuse models and results without a proof by name."""
    if isinstance(given, MapResult):
        given = given.proof
    if given is None:
        raise QueryError("there is no proof to check; map_query(..., proof=True) asks for one")
    if isinstance(given, Proof):
        return given
    if not is_path(given):
        raise QueryError(f"a {type(given).__name__} is no proof; expected result.proof, or the path of its file")
    try:
        return Proof.read(given)
    except ParseError:
        known = FORMATS.get(suffix_of(given))
        if known is None or not known.is_text or not os.path.isfile(given):
            raise
        text = f"is a model file (.{known.name}: {known.holds}), and no proof; expected what proof.write() wrote"
        raise ParseError(text, given) from None
