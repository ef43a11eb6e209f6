"""The part of a proof that a run provides: the coverage of all assignments but the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.certify.recorder import Recorder
from certimap.checker import Proof
from certimap.core.result import Certificate, CertificateKind, Rule


def draft(ledger: Ledger, certificate: Certificate, recorder: Recorder) -> Proof:
    """Return the method and arrays for checking a certificate, or the reason why there is no proof."""
    reason = _refusal(certificate)
    if reason is not None:
        return unproved(reason)
    if certificate.rule in (Rule.DRAWS, Rule.FRONTIER) and certificate.delta > 0.0:
        log_open, log_closed, counts = zip(*ledger.draw_groups, strict=True)
        record: dict[str, NDArray[Any]] = {
            "log_open": np.array(log_open),
            "log_closed": np.array(log_closed),
            "counts": np.array(counts, np.int64),
        }
        return Proof({"method": "draws", "rule": ledger.rule}, record)
    if certificate.rule is Rule.ENUMERATION:
        return Proof({"method": "enumeration"}, {})
    if certificate.rule is Rule.RESIDUAL:
        points = ledger.atoms.points(np.arange(ledger.atoms.n))
        return Proof({"method": "residual"}, {"points": points})
    if recorder.layout is not None:
        found = {} if recorder.is_full else recorder.trace() | recorder.tree(recorder.layout)
        if recorder.is_full:
            return unproved(f"the search has more splits than max_proof={recorder.max_bytes:,} bytes hold")
        return Proof({"method": "boxes"}, found)
    return Proof({"method": "bound"}, {})


def draft_of_parts(certificate: Certificate) -> Proof:
    """Return `draft` for a query that several workers searched in parts: the whole must be proved again."""
    reason = _refusal(certificate)
    if reason is None and certificate.delta > 0.0:
        reason = (
            "draws from parts that are searched side by side have no common record; leave executor and n_jobs out"
        )
    return Proof({"method": "bound"}, {}) if reason is None else unproved(reason)


def _refusal(certificate: Certificate) -> str | None:
    """Return why a certificate cannot be proved, or None."""
    if certificate.kind is CertificateKind.NONE:
        return "the run earned no certificate; raise its limits"
    if certificate.assumptions and certificate.rule is not Rule.EXTERNAL:
        return f"the certificate rests on an assumption ({certificate.assumptions[0]})"
    return None


def unproved(reason: str) -> Proof:
    """Return a placeholder proof that holds the reason why there is none."""
    return Proof({"method": "none", "no_proof": reason}, {})
