"""How numbers, tables and certificates look on a terminal."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from certimap.result import Certificate, CertificateKind, FailedQuery, Rule

if TYPE_CHECKING:
    from certimap.batch import Row
    from certimap.domain import Label
    from certimap.result import MapResult

SOME_FAILED = 3
CUT_SHORT = 130

_RULES = {
    Rule.RESIDUAL: "the probability not yet evaluated is too small to hide a better assignment",
    Rule.DRAWS: "that many draws would have met a better assignment",
    Rule.LIPSCHITZ: "that many draws would have met a neighbour of a better assignment",
    Rule.FRONTIER: "that many draws from the regions still open would have met a better assignment",
    Rule.BOUND: "an upper bound on every other assignment was computed",
    Rule.ENUMERATION: "every assignment was evaluated",
    Rule.EXTERNAL: "an upper bound was proved by a separate method",
}


def print_rows(rows: Iterable[Sequence[str]], indent: str = "") -> None:
    """Print rows of text in aligned columns, without cutting anything."""
    table = [tuple(row) for row in rows]
    if not table:
        return
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"{indent}{line}".rstrip())


def print_warning(text: str) -> None:
    """Print a line that must not be missed: bold where the terminal can."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False, soft_wrap=True).print(Text(text, style="bold yellow"))
    else:
        print(text)


def probability_text(log_value: float | None) -> str:
    """Show a probability or density given by its natural log, however small."""
    if log_value is None or math.isnan(log_value):
        return "unknown"
    if log_value == math.inf:
        return "unbounded"
    if log_value == -math.inf:
        return "0"
    if abs(log_value) < 690.0:
        return f"{math.exp(log_value):.6g}"
    exponent = math.floor(log_value / math.log(10.0))
    return f"{math.exp(log_value - exponent * math.log(10.0)):.4g}e{exponent:+d}"


def log_text(log_value: float | None) -> str:
    """Show a natural log."""
    if log_value is None or not math.isfinite(log_value):
        return "unknown" if log_value is None or math.isnan(log_value) else str(log_value)
    return f"{round(log_value, 6) + 0.0:.6f}"  # adding 0 turns -0 into 0


def certificate_sentence(certificate: Certificate, tolerance_shown: bool = True) -> str:
    """Say in plain words what is proved about an answer."""
    epsilon, delta = certificate.epsilon, certificate.delta
    factor = f"{1.0 - epsilon:.6g}"
    if certificate.kind is CertificateKind.EXACT:
        slack = f" (within a relative {certificate.tolerance:g})" if tolerance_shown else ""
        return f"exact: no assignment is more probable{slack}"
    if certificate.kind is CertificateKind.EPSILON:
        return f"certain: at least {factor} times as probable as the best (epsilon {epsilon:.3g}, delta 0)"
    if certificate.kind is CertificateKind.PAC:
        return (
            f"probable: at least {factor} times as probable as the best; such a statement is wrong in at most "
            f"{delta:.3g} of all runs (epsilon {epsilon:.3g}, delta {delta:.3g})"
        )
    return (
        f"none: asked for epsilon {certificate.requested_epsilon:.3g}, delta {certificate.requested_delta:.3g}; "
        f"at epsilon {epsilon:.3g} the run supports delta {delta:.3g}"
    )


def print_result(result: MapResult) -> None:
    """Print an answer for people: its certificate first when it has none."""
    if not result.certified:
        print_warning(f"NOT CERTIFIED. {result.status.message}")
    if result.note is not None:
        print_warning(f"Cut short: {result.note}.")
    for warning in result.certificate.assumptions:
        print_warning(f"Under an assumption: {warning}")
    print_rows((name, "=", str(label)) for name, label in result.assignment.items())
    print()
    rows = [("probability", f"{probability_text(result.log_prob)}  (ln p = {log_text(result.log_prob)})")]
    if result.log_prob is None:
        rows = [("joint value", f"{probability_text(result.log_joint)}  (ln = {log_text(result.log_joint)})")]
    low, high = result.log_prob, result.log_upper_bound
    if low is None:
        low, high = result.log_joint, result.log_joint_upper_bound
    bound = (
        f"{probability_text(low)} <= best <= {probability_text(high)}  (ln: {log_text(low)} to {log_text(high)})"
    )
    rows.append(("bounds", bound))
    if result.log_evidence is not None and abs(result.log_evidence) > 1e-9:
        text = f"{probability_text(result.log_evidence)}  (ln p(e) = {log_text(result.log_evidence)})"
        rows.append(("evidence", text))
    rows.append(("certificate", certificate_sentence(result.certificate)))
    if result.certificate.rule is not None:
        rows.append(("because", _RULES[result.certificate.rule]))
    if not result.certified and result.pareto:
        rows.append(("also earned", _pareto_text(result.pareto)))
    if result.ties:
        rows.append(("ties", f"{len(result.ties)} other assignments are exactly as probable"))
    work = f"{result.n_draws:,} draws, {result.n_evaluations:,} evaluations, {result.seconds:.2f} s"
    rows.append(("run", f"solver {result.solver}, {work}, seed {result.seed}"))
    if result.certified:
        rows.append(("status", result.status.message))
    print_rows(rows)
    if result.top is not None:
        _print_top(result.top)


@contextmanager
def _whole() -> Generator[None]:
    """Let Ctrl-C wait until what is being printed is complete."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        raise KeyboardInterrupt


class AnswerPrinter:
    """Prints the answers to a batch as they come: one by itself, several under the number of their case.

    As JSON, one answer is an object and several are a list that is whole even where the batch was cut short.

    Attributes
    ----------
    rows
        What is answered.
    as_json
        Print JSON.
    """

    def __init__(self, rows: Sequence[Row], as_json: bool) -> None:
        self.rows = rows
        self.as_json = as_json
        self.n_printed = 0
        self.failed: list[str] = []

    def print_all(self, answers: Iterable[MapResult | FailedQuery]) -> int:
        """Print answers until they end or Ctrl-C ends them; return the exit code.

        It is 0 when every case has an answer, 3 when some failed, and 130 when Ctrl-C left some out.
        """
        many = len(self.rows) > 1
        interrupted = False
        try:
            for answer in answers:
                with _whole():
                    self._print_one(answer, many)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            if not self.n_printed:
                raise
            interrupted = self.n_printed < len(self.rows)
        finally:
            if many and self.as_json:
                print("\n]" if self.n_printed else "[]")
        if self.failed or interrupted:
            print(f"certimap: {self._summary(interrupted)}", file=sys.stderr)
        return CUT_SHORT if interrupted else SOME_FAILED if self.failed else 0

    def _print_one(self, answer: MapResult | FailedQuery, many: bool) -> None:
        row = self.rows[self.n_printed]
        self.n_printed += 1
        if isinstance(answer, FailedQuery):
            self.failed.append(str(row.label))
        if self.as_json:
            text = answer.to_json(indent=2)
            print(("[\n" if self.n_printed == 1 else ",\n") + text if many else text, end="" if many else "\n")
            return
        if many:
            place = f" ({row.place})" if row.place else ""
            print(f"{'' if self.n_printed == 1 else chr(10)}case {row.label}{place}")
        if isinstance(answer, FailedQuery):
            print_warning(f"FAILED. {answer.message}")
        else:
            print_result(answer)

    def _summary(self, interrupted: bool) -> str:
        """Say how many cases have an answer, and which have none."""
        n = len(self.rows)
        parts = [f"{self.n_printed - len(self.failed)} of {n} cases answered"]
        if self.failed:
            shown = ", ".join(self.failed[:8]) + (", ..." if len(self.failed) > 8 else "")
            parts.append(f"{len(self.failed)} failed (case {shown})")
        if interrupted:
            parts.append(f"interrupted with {n - self.n_printed} to go")
        return ", ".join(parts)


def _pareto_text(pareto: Sequence[tuple[float, float]], limit: int = 4) -> str:
    """Show a few pairs of a Pareto front, its ends among them."""
    places = sorted({round(i * (len(pareto) - 1) / (limit - 1)) for i in range(limit)})
    return ", ".join(f"(epsilon {pareto[i][0]:.3g}, delta {pareto[i][1]:.3g})" for i in places)


def _print_top(top: Sequence[tuple[dict[str, Label], float]]) -> None:
    print(f"\nthe {len(top)} most probable:" if top else "")
    names = list(top[0][0]) if top else []
    rows = [("rank", "ln p", *names)]
    for rank, (assignment, log_prob) in enumerate(top, 1):
        rows.append((str(rank), log_text(log_prob), *(str(assignment[n]) for n in names)))
    print_rows(rows, indent="  ")
