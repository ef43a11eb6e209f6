"""Sources of upper bounds that come from outside the ledger."""

from __future__ import annotations

from dataclasses import dataclass


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
