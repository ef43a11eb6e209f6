"""The short commands: decide, marginals, next, sample, convert, explain, check, replay, report and kernels."""

from __future__ import annotations

import csv
import json
import math
import sys
import webbrowser
from collections import Counter
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

import certimap
from certimap import io
from certimap.cli import options
from certimap.cli.options import EncodingOption, EvidenceOptions, JsonOption, ModelArgument, argument, option
from certimap.cli.solve import print_rows
from certimap.core.result import json_ready
from certimap.io.files import write_text
from certimap.io.formats import suffixes


def marginals(case: EvidenceOptions, as_json: JsonOption = False) -> None:
    """Print the probability of each state of single variables given the evidence, and ln p(evidence)."""
    from certimap.ask import inference

    source, names, given = case.read_case()
    found = inference.marginals(source, names, given)
    log_evidence = inference.log_evidence(source, given)
    if as_json:
        tables = {name: {str(label): p for label, p in row.items()} for name, row in found.items()}
        print(json.dumps({"marginals": tables, "log_evidence": log_evidence}, indent=2))
        return
    print_rows(
        (name, ", ".join(f"{label} {p:.6g}" for label, p in sorted(row.items(), key=lambda item: -item[1])))
        for name, row in found.items()
    )
    print(f"\nln p(evidence) = {log_evidence:.6f}")


def next_(
    case: EvidenceOptions,
    candidates: Annotated[
        list[str] | None,
        option("--candidates", metavar="A,B", help="What may be observed. Omitted: all that is not."),
    ] = None,
    cost: Annotated[list[str] | None, option("--cost", metavar="A=2,B=5", help="Of each candidate.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what observing each candidate may tell about the query (nats), and P(the answer changes)."""
    source, names, given = case.read_case()
    prices = options.parse_settings([part for text in cost for part in text.split(",")]) if cost else None
    found = certimap.next_test(
        source, names or [], options.parse_query(candidates, source.domain), given, costs=prices
    )
    print(json.dumps({name: asdict(gain) for name, gain in found.items()}, indent=2) if as_json else found)


def sample(
    case: EvidenceOptions,
    n: Annotated[int, typer.Option("--n", "-n", help="How many rows.")] = 10,
    rng: Annotated[int | None, option("--rng", help="A seed, which replays the rows.")] = None,
    output: Annotated[Path | None, option("--output", "-o", help="A .csv file; otherwise printed.")] = None,
) -> None:
    """Draw independent rows from p(query | evidence), as CSV; what is not queried is summed out."""
    from certimap.ask import inference

    source, names, given = case.read_case()
    columns = inference.sample(source, n, given, names, rng=rng)
    text = StringIO(newline="")
    writer = csv.writer(sys.stdout if output is None else text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    if output is not None:
        write_text(output, text.getvalue())


def convert(
    source: Annotated[Path, argument(metavar="A", help=f"The model to read: {suffixes()}.")],
    target: Annotated[Path, argument(metavar="B", help="The file to write.")],
    encoding: EncodingOption = None,
    weights: Annotated[
        Path | None, typer.Option(help="Of .nnf and .sdd: a line LITERAL WEIGHT for each, or a weighted CNF.")
    ] = None,
    do: options.DoOption = None,
) -> None:
    """Write model A as B; the suffixes name the formats, each also with .gz. Text is written in UTF-8."""
    io.write(options.after(do, io.read(source, encoding=encoding, weights=weights)), target)


def explain(
    case: EvidenceOptions,
    rules: options.ConstraintOptions,
    query_file: options.QueryFileOption = None,
    entries: Annotated[
        int, typer.Option(help="Table entries whose exact range is found (Bayesian networks).")
    ] = 8,
    time_limit: Annotated[float | None, option(help="Seconds per query asked on the way.")] = None,
    rng: Annotated[int, typer.Option("--rng", help="A seed, which replays the answers.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Answer a query and say why: the lead, the evidence that it hangs on, how far table entries may move."""
    source, variables, given = case.read_case(query_file)
    held = rules.read(source.domain)
    found = certimap.explain(
        source, variables, given, n_entries=entries, rng=rng, time_limit=time_limit, constraints=held
    )
    print(json.dumps(found.to_dict(), indent=2) if as_json else str(found))


def conflict(
    case: EvidenceOptions,
    time_limit: Annotated[float | None, option(help="Seconds.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which observations have probability 0 together, or else which of them contradict the others most."""
    source, _, given = case.read_case()
    found = certimap.conflict(source, given, time_limit=time_limit)
    if as_json:
        print(json.dumps(json_ready(asdict(found)), indent=2))
        return
    rows = [(name, f"= {value}") for name, value in found.observations.items()]
    rows += [(name, f"{value:.6f}") for name, value in found.contributions.items()]
    text = f"ln p(e) - sum of ln p(e_i) = {found.score:.6f}; by observation:"
    if found.score == -math.inf:
        ending = (
            "no fewer do" if found.is_smallest else f"{'none' if found.is_minimal else 'some'} can be left out"
        )
        text = f"these observations have probability 0 together, and {ending}:"
    print(text)
    print_rows(rows, "  ")


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


def _show(moment: Any) -> None:
    sides = f"{moment.expected_utility:.9g}, of at most {moment.upper_bound:.9g}"
    print(f"{moment.seconds:.1f} s: {sides}", file=sys.stderr)


REJECTED = DIFFERENT = 1  # exit codes


def check(
    model: ModelArgument,
    proof: Annotated[Path, argument(metavar="FILE", help="What solve --proof wrote.")],
    exact: Annotated[
        bool, typer.Option("--exact", help="Check a small model by enumeration in exact numbers too.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which the check gives up, and rejects; inf for no limit.")
    ] = 600.0,
    max_memory: Annotated[
        str, typer.Option(help="Bytes that the check may take beside the model, such as 2G; more is rejected.")
    ] = "2G",
    encoding: EncodingOption = None,
    do: options.DoOption = None,
) -> None:
    """Check a proof by code that shares nothing with what found the answer.

    Exits with 0 when the claim is proved, and with 1 when it is not.
    """
    found = options.after(do, certimap.read(model, encoding=encoding))
    n_bytes = options.parse_size(max_memory)
    verdict = certimap.check(found, proof, exact=exact, time_limit=time_limit, max_memory=n_bytes)
    print(verdict.message)
    if verdict.asked:
        print(verdict.asked)
    for text in verdict.unchecked:
        print(f"not checked: {text}")
    if not verdict.accepted:
        raise typer.Exit(REJECTED)


def replay(
    result: Annotated[Path, argument(metavar="RESULT.json", help="What solve --json or -o wrote.")],
    model: ModelArgument,
    workers: options.WorkersOption = None,
    time_limit: Annotated[
        float | None, option("--time-limit", metavar="SECONDS", help="In place of the recorded limit.")
    ] = None,
    encoding: EncodingOption = None,
) -> None:
    """Ask recorded queries again, with their seeds and settings, and compare everything but times.

    Exits with 0 when every answer came out as recorded, with 1 when one differs. What is different about this run
    (version, processor, memory) is said in either case.
    """
    from certimap.ask.replay import read_records
    from certimap.ask.replay import replay as again
    from certimap.io.native import fingerprint
    from certimap.kernels.notice import announce_compilation

    records = read_records(result)
    source: Any = certimap.read(model, encoding=encoding)
    own = fingerprint(source)
    announce_compilation()
    n_same, n_failed, notes = 0, 0, dict[str, None]()
    for number, record in enumerate(records, 1):
        if "asked" not in record:
            n_failed += 1
            continue
        done = again(source, record, workers=workers, time_limit=time_limit, model_fingerprint=own)
        n_same += done.same
        notes.update(dict.fromkeys(done.notes))
        for difference in done.differences:
            print(f"answer {number}: {difference}" if len(records) > 1 else difference)
    for note in notes:
        print(f"note: {note}")
    n_asked = len(records) - n_failed
    skipped = f"; {n_failed} cases that failed then were not asked" if n_failed else ""
    verdict = "the same as recorded" if n_same == n_asked else "DIFFERENT from what was recorded"
    print(f"{n_same} of {n_asked} answers are the same but for times{skipped}: {verdict}")
    if n_same < n_asked:
        raise typer.Exit(DIFFERENT)


def report(
    results: Annotated[list[Path], argument(metavar="RESULT.json ...", help="What solve --json or -o wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the page.")
    ] = Path("report.html"),
) -> None:
    """Write a page that shows answers, what is proved about them, and how to make them again.

    The page is one file that needs no network: charts, a slider over the pairs (epsilon, delta), and tables.
    """
    from certimap.explanations.reports import report_page

    write_text(output, report_page(results))
    print(f"wrote {output}")


def explore(
    model: ModelArgument,
    port: Annotated[int, typer.Option(help="Of 127.0.0.1; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Show a model in the browser, where each click is answered with its certificate, until Ctrl-C."""
    served = certimap.explore(certimap.read(model), path=str(model), port=port)
    print(f"{model} is shown at {served.url}\nCtrl-C ends this.", flush=True)
    if not no_browser:
        webbrowser.open(served.url)
    served.wait()


def kernels(
    everything: Annotated[
        bool, typer.Option("--all", help="Compile beforehand what small queries of every kind need.")
    ] = False,
    workers: Annotated[
        int | None, option("--workers", help="Processes that compile; all cores by default.")
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="List every kernel with the types that it is for.")] = False,
) -> None:
    """List the compiled kernels of this installation, and say why any was compiled here.

    With --all, as in an image or before tests, missing ones are compiled first.
    """
    from certimap.cli import kernel_tasks
    from certimap.kernels.cache import shipped_target, versions

    if everything:
        kernel_tasks.compile_all(workers)
    target = shipped_target()
    shipped, own = (list(kernel_tasks.records(is_shipped)) for is_shipped in (True, False))
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    usable = f"for {target.name}" if target is not None else "not for this processor"
    print_rows(
        (
            ("versions", made_by),
            ("shipped", f"{len(shipped)} kernels {usable}"),
            ("compiled here", f"{len(own)} kernels, in {sum(r.seconds for r in own):.1f} s of processor time"),
        )
    )
    for reason, n in Counter(r.reason for r in own).most_common():
        print(f"{n} because {reason}")
    if long:
        print_rows(
            (r.kernel.removeprefix("certimap."), place, r.target, f"{r.seconds:.2f} s", r.signature)
            for place, records in (("shipped", shipped), ("here", own))
            for r in sorted(records, key=lambda r: (r.kernel, r.signature))
        )


SHORT = (check, replay, report, explain, conflict, decide, convert, marginals, next_, sample, explore, kernels)
