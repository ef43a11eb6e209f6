"""The page of a policy: what to do, what is proved about it, and what every option is expected to bring."""

from __future__ import annotations

from certimap.core.query import items_of
from certimap.core.result import CertificateKind
from certimap.decisions.policy import Policy
from certimap.explanations.reports.page import escaped, page, table


def policy_page(policy: Policy) -> str:
    """Return a self-contained HTML page about a `policy` of `certimap.decide`."""
    low, high, kind = policy.expected_utility, policy.upper_bound, policy.certificate.kind
    proved = (
        f"This policy has the expected utility {low:.9g}. It is proved that no policy has more than {high:.9g}."
    )
    if kind is CertificateKind.EXACT:
        proved = f"It is proved that no policy has more expected utility than this one: {low:.9g}."
    look = "verdict open" if kind is CertificateKind.NONE else "verdict"
    parts = ["<h3>What is proved</h3>", f"<div class='{look}'><p>{escaped(proved)}</p></div>"]
    facts = [("evidence", ", ".join(f"{name}={label}" for name, label in items_of(policy.evidence)) or "none")]
    facts += [("why the search ended", policy.status.message), ("seconds", f"{policy.seconds:.3g}")]
    parts += [table("In numbers", None, facts, "facts"), "<h3>What to do</h3>"]
    for name, rules in policy.tables.items():
        head = [*(v.name for v in rules.known), "choice", *(f"utility of {option}" for option in rules.options)]
        rows = [
            [*map(str, known.values()), str(best), *(f"{value:.6g}" for value in values)]
            for known, best, values in rules.rows()
        ]
        parts.append(table(f"Decision {name}, for what is known", head, rows))
    moments = [(f"{m.seconds:.4g}", f"{m.expected_utility:.9g}", f"{m.upper_bound:.9g}") for m in policy.history]
    parts.append("<h3>Bounds over time</h3>")
    parts.append(
        table("Expected utility", ("seconds", "of the best policy found", "of any policy at most"), moments)
    )
    title = f"Policy for {', '.join(policy.tables) or 'no decision'}"
    body = f"<section aria-labelledby='title-0'><h2 id='title-0'>{escaped(title)}</h2>{''.join(parts)}</section>"
    return page([(title, kind.value)], [body], [{}])
