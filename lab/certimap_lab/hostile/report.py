"""What the checks of one model found."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from certimap_lab.hostile.exact import falls_below, is_last_digits, log_of

KINDS = ("certificate", "bound", "digits", "value", "error")


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong.

    `kind` is one of `KINDS`: "certificate" (a false claim for certain), "bound" (an upper bound below the truth),
    "digits" (the same, by rounding in the last digits only), "value" (a number off by more than stated), "error"
    (an exception that is not for the user, or a refusal without cause).
    """

    kind: str
    text: str


@dataclass
class CaseReport:
    """Checks made on one model, and what failed.

    Attributes
    ----------
    seed, family
        What makes the model again.
    n_checks
        Answers, values and bounds compared with the truth.
    failures
        What was wrong, in the order of the checks.
    risks
        For each certificate with a failure probability: the one asked for, and whether the claim is false.
    n_late
        Runs whose time was up before they had an answer: no failures, for that depends on the machine.
    """

    seed: int
    family: str
    n_checks: int = 0
    failures: list[Failure] = field(default_factory=list[Failure])
    risks: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    n_late: int = 0

    def require(self, holds: bool, kind: str, text: str) -> None:
        """Count a check, and keep its sentence when it fails."""
        self.n_checks += 1
        if not holds:
            self.fail(kind, text)

    def require_bound(self, log_bound: float, value: Decimal, what: str) -> None:
        """Count a check of an upper bound, in natural logs, on a number."""
        self.n_checks += 1
        if falls_below(log_bound, value):
            kind = "digits" if is_last_digits(log_bound, value) else "bound"
            self.fail(kind, f"{what} is {log_bound!r}, below the truth {log_of(value)!r}")

    def fail(self, kind: str, text: str) -> None:
        self.failures.append(Failure(kind, text))
