"""Upper bounds that come from outside the ledger: this package's own provers, and a user's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from certimap.certify import bounds
from certimap.core.arguments import is_mapping
from certimap.core.posterior import Facts
from certimap.errors import SolverError

Proof = tuple[float, str, bool]  # ln of an upper bound, prover, whether it is this package's


@dataclass(frozen=True, eq=False)
class Source:
    """A prover of upper bounds in this package; compared by identity, not by name."""

    name: str


_OWN: list[Source] = []


def own_source(name: str) -> Source:
    """Register a source whose bounds this package vouches for; called once, by the module that proves them."""
    source = Source(name)
    _OWN.append(source)
    return source


def is_own(source: Source | str) -> bool:
    """Whether a source is one of this package's."""
    return any(source is known for known in _OWN)


EXPECTED = "expected {'source': who proved it, 'log_prob': ln of a bound on p(q | e)}, or 'log_joint' for p(q, e)"


@dataclass(frozen=True)
class ExternalBound:
    """An external bound on ln p*; a certificate that uses it names the source among its assumptions."""

    source: str  # the name of the prover
    of: str  # "log_prob": it bounds max ln p(q | e). "log_joint": it bounds max ln p(q, e), unnormalised or not.
    log_value: float  # natural log of the bound

    @classmethod
    def read(cls, given: Any) -> ExternalBound | None:
        """Parse the argument `upper_bound=`.

        Raises SolverError unless it is None or a mapping from "source" and "log_prob" or "log_joint".
        """
        if given is None:
            return None
        if not is_mapping(given) or len(given) != 2 or "source" not in given:
            raise SolverError(f"upper_bound is {given!r}; {EXPECTED}")
        of = next(name for name in given if name != "source")
        source, value = given["source"], given[of]
        if not (isinstance(source, str) and source.strip()) or of not in ("log_prob", "log_joint"):
            raise SolverError(f"upper_bound is {given!r}; {EXPECTED}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SolverError(f"upper_bound gives {value!r} for {of}; a finite natural log is expected")
        return cls(source, str(of), float(value))

    def on(self, facts: Facts) -> float:
        """Convert the bound to the scale of a posterior's `log_prob`, rounded up.

        Raises SolverError if the conversion needs p(e), which is unknown.
        """
        if (self.of == "log_prob") == facts.is_normalised:
            return self.log_value
        if facts.log_evidence is None:
            wanted = "log_prob" if facts.is_normalised else "log_joint"
            raise SolverError(
                f"the upper bound of {self.source} is of {self.of}, and p(e) is unknown here; give it of {wanted}"
            )
        shift = -facts.log_evidence if facts.is_normalised else facts.log_evidence
        return bounds.round_up(self.log_value + shift, max(bounds.SLACK, facts.log_slack))
