"""`certimap decide`: the best policy of an influence diagram, what seeing more is worth, and what it hangs on."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import certimap
from certimap.cli import options
from certimap.cli.options import EvidenceOptions, JsonOption, option
from certimap.core.result import json_ready
from certimap.decisions.policy import Moment


@dataclass(frozen=True)
class DecideOptions:
    """When a search ends, and what is said beside the policy."""

    epsilon: Annotated[float, option("--epsilon", help="End when both sides differ by this share.")] = 0.0
    tolerance: Annotated[float, option("--tolerance", help="End when they differ by this much utility.")] = 0.0
    time_limit: Annotated[float | None, option("--time-limit", metavar="SECONDS", help="Of each search.")] = None
    max_memory: Annotated[str | None, option("--max-memory", help="Bytes, such as 500M or 4G.")] = None
    information: Annotated[bool, typer.Option("--information", help="Say what seeing more is worth.")] = False
    strength: Annotated[
        bool, typer.Option("--strength", help="Say how far each probability may move until the policy changes.")
    ] = False
    report: Annotated[Path | None, option("--report", metavar="FILE.html", help="Write a page.")] = None


def decide(case: EvidenceOptions, ask: DecideOptions, as_json: JsonOption = False) -> None:
    """Print what to do at each decision of an influence diagram, and two sides of the best expected utility.

    Ctrl-C ends a search with the best policy and bound so far.
    """
    network, _, given = case.read_case()
    limits: dict[str, Any] = {"time_limit": ask.time_limit, "max_memory": options.parse_size(ask.max_memory)}
    show = _show if sys.stderr.isatty() else None
    policy = certimap.decide(network, given, epsilon=ask.epsilon, tolerance=ask.tolerance, progress=show, **limits)
    if ask.report is not None:
        policy.report(ask.report)
    if not as_json:
        print(policy, flush=True)
    names = policy.tables if ask.information else ()
    worth = {name: certimap.value_of_information(network, name, evidence=given, **limits) for name in names}
    strengths = certimap.strength_of_assumptions(policy, time_limit=ask.time_limit) if ask.strength else []
    if as_json:
        found = policy.to_dict() | ({"information": worth} if ask.information else {})
        found |= {"strength": [asdict(one) for one in strengths]} if ask.strength else {}
        print(json.dumps(json_ready(found), indent=2))
        return
    for name, values in worth.items():
        print(f"\nbefore {name}\n{values}")
    if ask.strength:
        print("\nthe policy stays best while one probability moves, the tightest first:", *strengths, sep="\n  ")


def _show(moment: Moment) -> None:
    sides = f"{moment.expected_utility:.9g}, of at most {moment.upper_bound:.9g}"
    print(f"{moment.seconds:.1f} s: {sides}", file=sys.stderr)
