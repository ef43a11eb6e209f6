"""Hands proof files to the checker."""

from __future__ import annotations

import os
from typing import Any

from certimap.checker import Proof, Verdict, check_arrays
from certimap.checker.file import read_within
from certimap.checker.models import BYTES, SECONDS, CheckBudget, Rejected
from certimap.core.arguments import check_number, is_path, keywords_hinted
from certimap.core.result import MapResult
from certimap.errors import ParseError, QueryError
from certimap.interop import as_model
from certimap.io.files import suffix_of
from certimap.io.formats import FORMATS
from certimap.io.native import exported


@keywords_hinted()
def check(
    model: Any,
    proof: Proof | MapResult | str | os.PathLike[str],
    *,
    exact: bool = False,
    time_limit: float | None = SECONDS,
    max_memory: int | None = BYTES,
) -> Verdict:
    """Check a proof by code that shares nothing with the solvers; see `docs/proofs.md`.

    Parameters
    ----------
    model
        The model of the query, or a model of another library (see `certimap.from_object`).
    proof
        A proof (`result.proof`), a result that has one, or the path of a proof file.
    exact
        Check a small model by enumeration in exact numbers too.
    time_limit
        Seconds after which the check gives up and rejects the proof. None: no limit. By default ten minutes.
    max_memory
        Bytes that the check may use beside the model; a proof that needs more is rejected before they are
        allocated. None: no limit. By default 2 GB.

    Returns
    -------
    Verdict
        True if the claim is proved; its `message` gives the statement proved, or the step that fails.

    Raises
    ------
    ParseError
        If the file is no proof. A proof that would unpack to more than `max_memory` is rejected instead.
    ModelError
        For a model that has no plain arrays.
    QueryError
        If `model` is no model, or a limit is no positive number.
    """
    model = as_model(model)
    expected = "seconds above 0, or None for no limit"
    if time_limit is not None and check_number("time_limit", time_limit, expected, QueryError) <= 0.0:
        raise QueryError(f"time_limit is {time_limit}; expected {expected}")
    expected = "bytes above 0, or None for no limit"
    if max_memory is not None and check_number("max_memory", max_memory, expected, QueryError) <= 0:
        raise QueryError(f"max_memory is {max_memory}; expected {expected}")
    budget = CheckBudget.starting_now(time_limit, max_memory)
    try:
        found = _proof_of(proof, budget)
    except Rejected as reason:
        return Verdict(False, f"rejected: {reason}")
    kind, variables, arrays, hidden = exported(model)
    return check_arrays(kind, variables, arrays, found, hidden=hidden, exact=exact, budget=budget)


def _proof_of(given: Any, budget: CheckBudget) -> Proof:
    """Return the proof meant by the user; name the mistake for a model file or a result without a proof."""
    if isinstance(given, MapResult):
        given = given.proof
    if given is None:
        raise QueryError("there is no proof to check; map_query(..., proof=True) asks for one")
    if isinstance(given, Proof):
        return given
    if not is_path(given):
        raise QueryError(f"a {type(given).__name__} is no proof; expected result.proof, or the path of its file")
    try:
        return read_within(given, budget)
    except ParseError:
        known = FORMATS.get(suffix_of(given))
        if known is None or not known.is_text or not os.path.isfile(given):
            raise
        text = f"is a model file (.{known.name}: {known.holds}), and no proof; expected what proof.write() wrote"
        raise ParseError(text, given) from None
