"""Results as short text and HTML, for a shell, a prompt or a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from certimap.core.model import Model

if TYPE_CHECKING:
    from certimap.core.result import Certificate, MapResult, TopMass

MAX_VARIABLES = 12  # of an assignment, in a summary
_RULES = {
    "residual": "the probability not yet evaluated is too small to hide a better assignment",
    "draws": "that many draws would have met a better assignment",
    "lipschitz": "that many draws would have met a neighbour of a better assignment",
    "frontier": "that many draws from the regions still open would have met a better assignment",
    "bound": "an upper bound on every other assignment was computed",
    "enumeration": "every assignment was evaluated",
    "external": "an upper bound was proved by a separate method",
}
_CONSTRAINED = (
    ("assignment is more", "assignment that satisfies the constraints is more"),
    ("every assignment", "every assignment that satisfies the constraints"),
    ("as the best", "as the best that satisfies the constraints"),
    ("as the most probable one", "as the most probable one that satisfies the constraints"),
)
_DENSE = (
    ("as probable as the most probable", "as dense as the densest"),
    ("as probable as", "as dense as"),
    ("less probable than", "less dense than"),
    ("most probable", "densest"),
    ("more probable", "denser"),
    ("natural log of probability", "natural log of density"),
    ("best probability", "best density"),
)


def aligned(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Format rows of text as lines in aligned columns, without truncation."""
    table = [tuple(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    return [
        f"{indent}{'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()
        for row in table
    ]


def probability_text(log_value: float | None) -> str:
    """Show a probability or density given by its natural log; as a power of e if it is beyond floats."""
    if log_value is None or math.isnan(log_value):
        return "unknown"
    if log_value == math.inf:
        return "unbounded"
    if log_value == -math.inf:
        return "0"
    return f"e^{log_value:.6g}" if _is_beyond_floats(log_value) else f"{math.exp(log_value):.6g}"


def _is_beyond_floats(log_value: float | None) -> bool:
    """Whether a number with this finite log underflows or overflows a float of full precision."""
    return log_value is not None and 708.0 < abs(log_value) < math.inf


def _with_log(log_value: float | None, name: str) -> str:
    """Show a number and its log, or only its log if the number is beyond floats."""
    log = f"{name} = {log_text(log_value)}"
    return log if _is_beyond_floats(log_value) else f"{probability_text(log_value)}  ({log})"


def log_text(log_value: float | None) -> str:
    """Show a natural log."""
    if log_value is None or not math.isfinite(log_value):
        return "unknown" if log_value is None or math.isnan(log_value) else str(log_value)
    return f"{round(log_value, 6) + 0.0:.6f}"  # adding 0 turns -0 into 0


def certificate_sentence(certificate: Certificate, *, is_density: bool = False) -> str:
    """Describe a certificate in one plain sentence."""
    if is_density:
        return in_words_of_density(certificate_sentence(certificate))
    epsilon, delta = certificate.epsilon, certificate.delta
    factor = f"{1.0 - epsilon:.6g}"
    if certificate.kind == "exact":
        return f"exact: no assignment is more probable (within a relative {certificate.tolerance:g})"
    if certificate.kind == "epsilon":
        return f"certain: at least {factor} times as probable as the best (epsilon {epsilon:.3g}, delta 0)"
    if certificate.kind == "pac":
        return (
            f"probable: at least {factor} times as probable as the best; such a statement is wrong in at most "
            f"{delta:.3g} of all runs (epsilon {epsilon:.3g}, delta {delta:.3g})"
        )
    return (
        f"none: asked for epsilon {certificate.requested_epsilon:.3g}, delta {certificate.requested_delta:.3g}; "
        f"at epsilon {epsilon:.3g} the run supports delta {delta:.3g}"
    )


def in_words_of_constraints(text: str) -> str:
    """Reword a text about all assignments for the assignments that satisfy constraints."""
    for plain, constrained in _CONSTRAINED:
        text = text.replace(plain, constrained)
    return text


def in_words_of_density(text: str) -> str:
    """Reword a text about probabilities for densities."""
    for plain, dense in _DENSE:
        text = text.replace(plain, dense)
    return text


def warnings_of(result: MapResult) -> list[str]:
    """Return the warnings to print before an answer."""
    found: list[str] = []
    if not result.certified:
        found.append(f"NOT CERTIFIED. {result.status.message}")
    if result.note is not None:
        found.append(f"Cut short: {result.note}.")
    if result.no_proof is not None:
        found.append(f"{'No proof' if result.proof is None else 'Proof'}: {result.no_proof}.")
    return found + [f"Under an assumption: {text}" for text in result.certificate.assumptions]


def facts_of(result: MapResult) -> list[tuple[str, str]]:
    """Return the facts about an answer as (name, text) pairs."""
    name = "density" if result.is_density else "probability"
    model = None if result.origin is None else result.origin.model
    rows = [(name, _with_log(result.log_prob, "ln p"))]
    if result.log_prob is None:
        rows = [("joint value", _with_log(result.log_joint, "ln"))]
    if result.is_lower_side:
        rows = [(rows[0][0], f"at least {rows[0][1]}")]
    low, high = result.log_prob, result.log_upper_bound
    if low is None:
        low, high = result.log_joint, result.log_joint_upper_bound
    bound = f"{log_text(low)} <= ln best <= {log_text(high)}"
    if not (_is_beyond_floats(low) or _is_beyond_floats(high)):
        sides = f"{probability_text(low)} <= best <= {probability_text(high)}"
        bound = f"{sides}  (ln: {log_text(low)} to {log_text(high)})"
    rows.append(("bounds", bound))
    if result.log_evidence is not None and abs(result.log_evidence) > 1e-9:
        is_total = isinstance(model, Model) and not model.is_normalised
        name, log_name = ("total", "ln") if is_total else ("evidence", "ln p(e)")
        rows.append((name, _with_log(result.log_evidence, log_name)))
    if isinstance(model, Model) and model.domain.interventions:
        rows.append(("after", model.domain.done))
    proved = [("certificate", certificate_sentence(result.certificate, is_density=result.is_density))]
    if result.certificate.rule is not None:
        proved.append(("because", _RULES[result.certificate.rule]))
    if result.constraints:
        rows.append(("under", ", ".join(repr(constraint) for constraint in result.constraints)))
        proved = [(title, in_words_of_constraints(text)) for title, text in proved]
    rows += proved
    if not result.certified and result.pareto:
        rows.append(("also earned", _pareto_text(result.pareto)))
    if not result.certified and result.min_entropy_bits is not None:
        rows.append(("min-entropy", _entropy_text(result)))
    if result.ties:
        found = (
            "peaks of the same height were found" if result.is_density else "assignments are exactly as probable"
        )
        rows.append(("ties", f"{len(result.ties)} other {found}"))
    if result.top_mass is not None:
        rows.append(("set", _mass_text(result.top_mass)))
    if result.located is not None:
        sides = ", ".join(f"{name} in [{low:.6g}, {high:.6g}]" for name, (low, high) in result.located.items())
        rows.append(("located", f"every mode has {sides}"))
    work = f"{result.n_draws:,} draws, {result.n_evaluations:,} evaluations, {result.seconds:.2f} s"
    rows.append(("run", f"solver {result.solver}, {work}, seed {result.seed}"))
    if result.certified:
        rows.append(("status", result.status.message))
    return rows


def _mass_text(mass: TopMass) -> str:
    """Show what the assignments listed hold, and whether fewer may do."""
    held = f"{mass.n:,} assignments hold {mass.held:.6g}"
    if mass.fewest is None:
        return f"{held} of the {mass.requested:g} asked for; all that satisfy the constraints hold less than that"
    if not mass.is_reached:
        return f"{held} of the {mass.requested:g} asked for; at least {mass.fewest:,} are needed; raise top_k"
    return f"{held}; {'no fewer do' if mass.fewest == mass.n else f'at least {mass.fewest:,} are needed'}"


def _entropy_text(result: MapResult) -> str:
    """Show the bounds on -log2 p* and the number of draws that they imply."""
    low, high = result.min_entropy_bits or (0.0, math.inf)
    text = f"{low:.4g} to {high:.4g} bits"
    if result.draws_needed is not None:
        text += f"; pac would need {result.draws_needed[0]:.3g} to {result.draws_needed[1]:.3g} draws"
    return text


def text_of(result: MapResult) -> str:
    """Return a result as a few lines: warnings, the first variables of the assignment, and facts."""
    return "\n".join([*warnings_of(result), *aligned(_assigned(result)), *aligned(facts_of(result))])


def html_of(result: MapResult) -> str:
    """Return the content of `text_of` as HTML tables."""
    warnings = "".join(f"<p><strong>{html.escape(text)}</strong></p>" for text in warnings_of(result))
    return warnings + _html_table(_assigned(result)) + _html_table(facts_of(result))


def _assigned(result: MapResult) -> list[tuple[str, str]]:
    """Return the first variables of the answer and their labels."""
    pairs = [(name, f"= {label}") for name, label in result.assignment.items()]
    if len(pairs) > MAX_VARIABLES:
        pairs = [*pairs[: MAX_VARIABLES - 1], ("...", f"({len(pairs)} variables in all)")]
    return pairs or [("(nothing left to assign)", "")]


def _html_table(rows: Iterable[Sequence[str]]) -> str:
    lines = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _pareto_text(pareto: Sequence[tuple[float, float]], limit: int = 4) -> str:
    """Show a few pairs of a Pareto front, including both ends."""
    places = sorted({round(i * (len(pareto) - 1) / (limit - 1)) for i in range(limit)})
    return ", ".join(f"(epsilon {pareto[i][0]:.3g}, delta {pareto[i][1]:.3g})" for i in places)
