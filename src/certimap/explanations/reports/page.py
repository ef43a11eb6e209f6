"""A report: one self-contained HTML page with charts, a slider, and tables of the same data."""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from importlib.resources import files
from string import Template
from typing import Any, TypeVar

import certimap
from certimap.ask.replay import read_records
from certimap.core.arguments import Record
from certimap.core.constraints import constraints_of
from certimap.core.domain import Label
from certimap.core.result import Certificate, CertificateKind, HistoryEntry, MapResult, Rule, Status, TopMass
from certimap.core.summary import (
    certificate_sentence,
    facts_of,
    in_words_of_constraints,
    in_words_of_density,
    log_text,
    probability_text,
    warnings_of,
)
from certimap.errors import ParseError, QueryError
from certimap.explanations import Explanation, Lead, Swing, Tolerance
from certimap.io.files import AnyPath

T = TypeVar("T")


def _read(kind: type[T], record: Record, **known: Any) -> T:
    """Return plain data from its JSON form, each field by its annotation."""
    found = dict(known)
    for f in fields(kind):  # pyright: ignore[reportArgumentType]
        if f.name not in known and (f.name in record or (f.default is MISSING and f.default_factory is MISSING)):
            found[f.name] = _value(f.name, str(f.type), record[f.name])
    return kind(**found)


def _value(name: str, given: str, value: Any) -> Any:
    """Return the value of a field; a null number is infinite unless its annotation has None."""
    if value is None:
        return None if given != "float" else -math.inf if name == "log_prob" else math.inf
    return _READERS.get(given.removesuffix(" | None"), lambda x: x)(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    "CertificateKind": CertificateKind,
    "Rule": Rule,
    "dict[str, Label]": dict,
    "tuple[str, ...]": lambda x: tuple(map(str, x)),
    "list[tuple[float, float]]": lambda x: [(float(epsilon), float(delta)) for epsilon, delta in x],
    "list[tuple[dict[str, Label], float]]": lambda x: [(dict(a), _value("log_prob", "float", v)) for a, v in x],
    "tuple[dict[str, Label] | None, dict[str, Label] | None]": lambda x: tuple(one and dict(one) for one in x),
    **{kind.__name__: partial(_read, kind) for kind in (Certificate, TopMass, Lead)},
    **{f"list[{kind.__name__}]": lambda x, k=kind: [_read(k, one) for one in x] for kind in (Swing, Tolerance)},
}


def result_of(record: Record, path: AnyPath) -> MapResult:
    """Return the result that a record was written from; raises ParseError, naming the file, where damaged."""
    try:
        rules, moments = constraints_of(record.get("constraints") or []), _moments(record.get("history"))
        status = Status(record["status"]["code"])
        return _read(MapResult, record, status=status, history=moments, constraints=rules)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ParseError(
            f"holds a damaged result ({said}); expected what 'certimap solve -o' writes", path
        ) from None


def explanation_of(record: Record, result: MapResult, path: AnyPath) -> Explanation | None:
    """Return the explanation beside an answer (`certimap solve --explain`), if any; ParseError where damaged."""
    held = record.get("explanation")
    try:
        return None if held is None else _read(Explanation, held, answer=result)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ParseError(
            "holds a damaged explanation; expected what 'certimap solve --explain -o' writes", path
        ) from None


def _moments(columns: Any) -> list[HistoryEntry]:
    """Turn columns back into moments; records of older versions have none, or no search nodes."""
    if columns is None:
        return []
    names = [f.name for f in fields(HistoryEntry) if f.name in columns]
    rows = zip(*(columns[name] for name in names), strict=True)
    return [_read(HistoryEntry, dict(zip(names, row, strict=True))) for row in rows]


_MAX_ROWS = 400  # of a table of variables; the rest is counted


def table(caption: str, head: Sequence[str] | None, rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table whose first column heads its rows; it scrolls by keyboard where it is too wide or long."""
    held = list(rows)
    more = (
        f"<p>and {len(held) - _MAX_ROWS:,} more, which the result file holds</p>" if len(held) > _MAX_ROWS else ""
    )
    columns = "".join(f"<th scope='col'>{escaped(name)}</th>" for name in head or ())
    bodies = ((row[0], "".join(f"<td>{escaped(cell)}</td>" for cell in row[1:])) for row in held[:_MAX_ROWS])
    lines = "".join(f"<tr><th scope='row'>{escaped(name)}</th>{cells}</tr>" for name, cells in bodies)
    return (
        f"<div class='scroll' tabindex='0' role='group' aria-label='{escaped(caption)}'><table class='{kind}'>"
        f"<caption>{escaped(caption)}</caption>{f'<thead><tr>{columns}</tr></thead>' if head else ''}"
        f"<tbody>{lines}</tbody></table>{more}</div>"
    )


def escaped(text: object) -> str:
    """Escape text for HTML, including attribute values in quotes."""
    return html.escape(str(text), quote=True)


def why(explained: Explanation) -> str:
    """Return an explanation as HTML, each part with its certificate."""
    parts: list[str] = []
    if explained.superseded is not None:
        text = "Another assignment is more probable than the one above. The following explains that one."
        parts.append(f"<p><strong>{text}</strong></p>")
    parts += [_lead(explained), _swings(explained)]
    free = explained.log_odds_free
    if free > 0.0:
        text = (
            f"The odds of any one table entry may change by a factor of {_times(free)}; the answer stays (proved)."
        )
        parts.append(f"<p>{text}</p>")
    if explained.tolerances:
        head = ("table entry", "is", "may move from", "to", "proof")
        rows = [_range(t) for t in explained.tolerances]
        parts.append(table("How far single table entries may move before the answer changes", head, rows))
    return "".join(parts)


def _lead(explained: Explanation) -> str:
    lead = explained.lead
    which = " that satisfies the constraints" if explained.answer.constraints else ""
    if lead is None:
        return "" if explained.answer.is_density else f"<p>There is no other assignment{which}.</p>"
    answer = explained.answer.assignment if explained.superseded is None else None
    if lead.nats == math.inf:
        return f"<p>No other assignment{which} is possible ({_proof(lead.kind)}).</p>"
    changes = {n: s for n, s in lead.runner_up.items() if answer is None or s != answer[n]}
    where = f"the next best, which has {escaped(_changes(changes))}"
    if lead.nats == 0.0:
        return f"<p>It is exactly as probable as {where} ({_proof(lead.kind)}).</p>"
    return f"<p>It is {_times(lead.nats)} times as probable as {where} ({_proof(lead.kind)}).</p>"


def _swings(explained: Explanation) -> str:
    """Show the answer without each observation, and with alternative states that change it."""
    if not explained.removed:
        return ""
    text = _table_of("The answer without one of the observations", "without", explained.removed)
    if explained.changed:
        return text + _table_of("Other states that would change the answer", "with", explained.changed)
    return f"{text}<p>No other state of a single observation changes the answer.</p>"


def _table_of(caption: str, word: str, swings: Sequence[Swing]) -> str:
    rows = [
        (
            s.variable if s.state is None else f"{s.variable} = {s.state}",
            "the evidence is impossible" if s.kind is None else _changes(s.changes) or "the answer stays",
            "" if s.kind is None else _proof(s.kind),
        )
        for s in swings
    ]
    return table(caption, (word, "the answer has", "proof"), rows)


def _range(t: Tolerance) -> tuple[str, ...]:
    given = _changes(t.given)
    entry = f"P({t.variable} = {t.state}{' | ' if given else ''}{given})"
    return entry, f"{t.value:.4g}", f"{t.low:.4g}", f"{t.high:.4g}", _proof(t.kind)


def _changes(changes: Mapping[str, Label]) -> str:
    return ", ".join(f"{name} = {label}" for name, label in changes.items())


def _times(nats: float) -> str:
    return f"{math.exp(nats):.4g}" if nats < 600.0 else f"e^{nats:.4g}"


def _proof(kind: CertificateKind) -> str:
    return "proved" if kind is CertificateKind.EXACT else "not proved"


MAX_ANSWERS = 100
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def report_page(paths: Sequence[AnyPath]) -> str:
    """Return the page that shows the answers of result files; cost: linear in their size.

    `paths` are files of `certimap solve -o`, each with one answer or a list of them. Raises ParseError if a file
    holds anything else, and QueryError with no file, or more than MAX_ANSWERS answers in all.
    """
    return page_of([(path, n, record) for path in paths for n, record in enumerate(read_records(path), 1)])


def page_of(held: Sequence[tuple[AnyPath, int, Record]]) -> str:
    """Return the page of records, each with its file and its number there."""
    if not 0 < len(held) <= MAX_ANSWERS:
        raise QueryError(f"a report shows 1 to {MAX_ANSWERS} answers; these files hold {len(held)}")
    several = {str(path) for path, number, _ in held if number > 1}
    sections: list[str] = []
    links: list[tuple[str, str]] = []
    data: list[Record] = []
    for i, (path, number, record) in enumerate(held):
        title = f"{path}, answer {number}" if str(path) in several else str(path)
        if "error" in record:
            body, said, found = f"<p class='verdict open'>{escaped(record['message'])}</p>", "failed", None
        else:
            found = result_of(record, path)
            why_so = explanation_of(record, found, path)
            body, said = _answer(i, path, record, found, why_so), found.certificate.kind.value
        links.append((title, said))
        sections.append(
            f"<section aria-labelledby='title-{i}'><h2 id='title-{i}'>{escaped(title)}</h2>{body}</section>"
        )
        data.append({} if found is None else {"history": found.history_columns(), "pareto": found.pareto})
    return page(links, sections, data)


def page(links: Sequence[tuple[str, str]], sections: Sequence[str], data: Any) -> str:
    """Put the parts together with style, charts and data; nothing is loaded from elsewhere."""
    title = f"Report of certimap: {links[0][0] if len(links) == 1 else f'{len(links)} answers'}"
    items = "".join(
        f"<li><a href='#title-{i}'>{escaped(t)}</a>: {escaped(s)}</li>" for i, (t, s) in enumerate(links)
    )
    contents = f"<nav aria-label='Answers'><ol>{items}</ol></nav>" if len(links) > 1 else ""
    held = (
        json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    )
    return Template(_part("page.html")).substitute(
        title=escaped(title), version=escaped(certimap.__version__), contents=contents, sections="".join(sections),
        data=held, policy=_POLICY, style=_part("page.css"), charts=_part("chart.umd.min.js"),
        script=_part("page.js"),
    )  # fmt: skip


def _part(name: str) -> str:
    return files("certimap.explanations.reports").joinpath(name).read_text(encoding="utf-8")


def _answer(i: int, path: AnyPath, record: Record, result: MapResult, explained: Explanation | None) -> str:
    """Return the body of one answer's section."""
    asked: Record = record["asked"]
    warnings = "".join(f"<p><strong>{escaped(text)}</strong></p>" for text in warnings_of(result))
    look = "verdict" if result.certified else "verdict open"
    verdict = f"<div class='{look}'>{warnings}<p>{escaped(proved(result))}</p></div>"
    parts = [
        "<h3>Question</h3>", _question(asked, result),
        "<h3>Answer</h3>", _answers(result),
        "<h3>What is proved</h3>", verdict, table("In numbers", None, facts_of(result), "facts"),
        "" if explained is None else f"<h3>Why this answer</h3>{why(explained)}",
        _history(i, result), _front(i, result),
        "<h3>Where it came from</h3>", _provenance(path, asked, result),
    ]  # fmt: skip
    return "".join(parts)


def proved(result: MapResult) -> str:
    """State what is proved of an answer, for a reader without the vocabulary."""
    text = _plain(result.certificate)
    text = in_words_of_density(text) if result.is_density else text
    return in_words_of_constraints(text) if result.constraints else text


def _plain(c: Certificate) -> str:
    """State a certificate for a reader without the vocabulary."""
    if c.kind == "exact":
        return "It is proved that no other assignment is more probable than this one."
    factor = f"{1.0 - c.epsilon:.4g}"
    if c.kind == "epsilon":
        return (
            f"It is proved that this assignment is at least {factor} times as probable as the most probable one."
        )
    if c.kind == "pac":
        return (
            f"This assignment is at least {factor} times as probable as the most probable one. The proof rests on "
            f"random draws: such a statement is wrong in at most {c.delta:.3g} of all runs."
        )
    return f"The proof that was asked for is missing. Certificate: {certificate_sentence(c)}."


def _question(asked: Record, result: MapResult) -> str:
    """State the query, the evidence and the constraints."""
    n = len(result.assignment)
    what = (
        "all variables without evidence" if asked["query"] is None else ", ".join(str(q) for q in asked["query"])
    )
    counted = f"{n} variable" if n == 1 else f"{n:,} variables"
    lead = f"<p>Which states of {escaped(what)} ({counted}) are the most probable together"
    if result.is_density:
        lead = f"<p>At which values of {escaped(what)} ({counted}) is the density highest"
    done = ", ".join(f"{name}={label!r}" for name, label in asked.get("do", {}).items())
    lead += f", after do({escaped(done)})" if done else ""
    rows = [(name, _observed(form)) for name, form in asked["evidence"].items()]
    lead += f", {'given what was' if rows else 'with nothing'} observed?</p>"
    lead += table("Observed", ("variable", "evidence"), rows) if rows else ""
    rules = [(repr(rule),) for rule in result.constraints]
    return lead + (table("Constraints on the answer", None, rules) if rules else "")


def _observed(form: Record) -> str:
    """Show evidence as it was recorded."""
    if "label" in form or "labels" in form:
        return str(form["label"]) if "label" in form else "one of " + ", ".join(str(x) for x in form["labels"])
    kind, content = next(iter(form.items()))
    if kind == "interval":
        low, high = ("open" if x is None else f"{x:g}" for x in content)
        return f"between {low} and {high}"
    names = {"state": "state number", "states": "one of the states number", "log_weights": "log weights per state"}
    return f"{names.get(kind, kind)} {json.dumps(content)}"


def _answers(result: MapResult) -> str:
    """Show the assignment, and the next best ones if `top_k` requested them."""
    shown = [(name, str(label)) for name, label in result.assignment.items()]
    text = table("The assignment found", ("variable", "value" if result.is_density else "state"), shown)
    if not result.top or len(result.top) < 2:
        return text
    first = result.top[0][0]
    rows = [
        (
            str(rank), log_text(value), probability_text(value),
            ", ".join(f"{n} = {label}" for n, label in assignment.items() if label != first[n]) or "nothing",
        )
        for rank, (assignment, value) in enumerate(result.top, 1)
    ]  # fmt: skip
    name = "density" if result.is_density else "probability"
    title = "The densest points found" if result.is_density else "The most probable assignments"
    return text + table(title, ("rank", "ln p", name, "differs in"), rows)


def _history(i: int, result: MapResult) -> str:
    """Show the convergence of the bounds, as a chart and as a table."""
    columns = result.history_columns()
    if not columns["seconds"]:
        return "<h3>Bounds over time</h3><p>The file holds no history of the run.</p>"
    label = "Chart: best probability found and upper bound, as natural logs, against seconds; a table follows."
    label = in_words_of_density(label) if result.is_density else label
    rows = [
        (f"{seconds:.4g}", f"{draws:,}", f"{evaluations:,}", _log(best), _log(upper))
        for seconds, draws, evaluations, best, upper in zip(
            columns["seconds"], columns["n_draws"], columns["n_evaluations"], columns["log_prob"],
            columns["log_upper_bound"], strict=True,
        )
    ]  # fmt: skip
    head = ("seconds", "draws", "evaluations", "best found", "upper bound")
    return (
        "<h3>Bounds over time</h3>"
        f"<div class='chart'><canvas id='history-{i}' role='img' aria-label='{label}'></canvas></div>"
        f"<details><summary>Bounds over time as a table</summary>{table('Natural logs', head, rows)}</details>"
    )


def _log(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6f}"


def _front(i: int, result: MapResult) -> str:
    """Show the pairs (epsilon, delta) that the run supports: a slider, a chart, a table."""
    if not result.pareto:
        return "<h3>Tolerance against failure probability</h3><p>The run supports no pair (epsilon, delta).</p>"
    less = "how much less probable than the best the answer may be"
    less = in_words_of_density(less) if result.is_density else less
    start = round(min(max(result.certificate.epsilon, 0.0), 1.0), 3)
    label = "Chart: smallest failure probability delta against tolerance epsilon; a table follows."
    rows = [(f"{epsilon:.6g}", f"{delta:.6g}") for epsilon, delta in result.pareto]
    return (
        "<h3>Tolerance against failure probability</h3>"
        f"<p><label for='epsilon-{i}'>Tolerance epsilon: {less}"
        f"</label><input type='range' id='epsilon-{i}' min='0' max='1' step='0.001' value='{start}'>"
        f"<output id='delta-{i}' for='epsilon-{i}'></output></p>"
        f"<div class='chart'><canvas id='front-{i}' role='img' aria-label='{label}'></canvas></div>"
        "<details><summary>All pairs as a table</summary>"
        f"{table('Pairs that hold together', ('epsilon', 'delta'), rows)}</details>"
    )


def _provenance(path: AnyPath, asked: Record, result: MapResult) -> str:
    """State the origin of the answer, and the way to reproduce it."""
    model = asked.get("file")
    command = shlex.join(["certimap", "replay", str(path), *([] if model is None else [str(model)])])
    command += " MODEL" if model is None else ""
    rows = [("model", "not recorded" if model is None else str(model)), ("fingerprint", str(asked["model"]))]
    rows += [("solver", result.solver), ("seed", str(result.seed)), ("certimap", result.version)]
    rows += [(f"setting {name}", json.dumps(value)) for name, value in asked["settings"].items() if value != {}]
    rows += [(str(name), str(value)) for name, value in asked["machine"].items() if name != "certimap"]
    lead = "<p>This command asks the question again and compares the answer:</p>"
    return f"{lead}<pre><code>{escaped(command)}</code></pre>{table('Provenance', None, rows, 'facts')}"
