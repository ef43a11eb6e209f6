"""Text from the shell as names, labels and settings; options that several commands take; queries and evidence."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

import certimap
from certimap.ask.batch import PLAIN, BatchRow
from certimap.core.constraints import AtMost, Constraint, Never, constraints_of
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.errors import QueryError, did_you_mean
from certimap.io import evidence as files
from certimap.io.evidence import ASSIGNMENT_FORMATS, Asked, Evidence, EvidenceCase, TextOptions
from certimap.io.files import parsed_json, suffix_of
from certimap.io.formats import suffixes
from certimap.io.text_tables import CASES, SUFFIXES, TextTable, read_text_table
from certimap.solvers.registry import names


def split_list(text: str) -> list[str]:
    """Split at commas outside double quotes; the quotes themselves are dropped."""
    parts = text.split('"')
    if len(parts) % 2 == 0:
        raise QueryError(f"{text!r} opens a quote that it does not close")
    hidden = "".join(part.replace(",", "\0") if k % 2 else part for k, part in enumerate(parts))
    return [part.strip().replace("\0", ",") for part in hidden.split(",")]


def parse_query(options: Sequence[str] | None, domain: Domain) -> list[str] | None:
    """Return the variables of --query: each option is a name, or names separated by commas."""
    if not options:
        return None
    return [name for text in options for name in ([text] if text in domain else split_list(text))]


def parse_evidence(options: Sequence[str] | None, domain: Domain) -> Evidence:
    """Return the evidence of --evidence: each option is NAME=STATE, or several separated by commas.

    Names and labels may contain commas and equals signs: an option that is valid as a single pair is read as one;
    elsewhere double quotes protect a comma.
    """
    pairs: list[tuple[str, Any]] = []
    for text in options or ():
        pair = _as_pair(text, domain)
        pairs += [pair] if pair else [_pair(part, domain) for part in split_list(text)]
    return merged({name: label} for name, label in pairs)


def after(interventions: Sequence[str] | None, model: Model) -> Model:
    """Return the model after the interventions of --do, which are written as evidence is."""
    return model.do(parse_evidence(interventions, model.domain)) if interventions else model


def parse_upper_bound(text: str | None) -> dict[str, Any] | None:
    """Parse --upper-bound, SOURCE:log_joint=X or SOURCE:log_prob=X, for `map_query`."""
    if text is None:
        return None
    source, _, rest = text.rpartition(":")
    name, _, value = rest.partition("=")
    try:
        return {"source": source, name.strip(): float(value)}
    except ValueError:
        told = f"--upper-bound {text!r} is no bound; SOURCE:log_joint=X or SOURCE:log_prob=X is expected"
        raise QueryError(told) from None


def _as_pair(text: str, domain: Domain) -> tuple[str, Any] | None:
    """Read a text as one pair if a split at an equals sign gives a variable and one of its states."""
    for place, character in enumerate(text):
        if character == "=" and text[:place].strip() in domain:
            name = text[:place].strip()
            try:
                return name, domain[name].parse(text[place + 1 :].strip())
            except QueryError:
                continue
    return None


def _pair(text: str, domain: Domain) -> tuple[str, Any]:
    pair = _as_pair(text, domain)
    if pair is not None:
        return pair
    name, equals, label = text.partition("=")
    if not equals:
        raise QueryError(f"{text!r} is no evidence; expected NAME=STATE, with commas between several")
    domain.index(name.strip())
    return name.strip(), domain[name.strip()].parse(label.strip())


def read_warm_start(text: str, domain: Domain, options: TextOptions) -> Any:
    """Return the name of a solver, or the assignments in a file."""
    if text in names():
        return text
    if suffix_of(text) in ASSIGNMENT_FORMATS or Path(text).exists():
        return files.read_assignments(text, domain, options)
    wanted = f"a solver's name or a file of assignments ({suffixes(ASSIGNMENT_FORMATS)})"
    raise QueryError(f"{text!r} is no warm start; expected {wanted}{did_you_mean(text, names())}")


def parse_settings(options: Sequence[str] | None) -> dict[str, Any]:
    """Read NAME=VALUE settings; a value is a JSON literal if valid, else text."""
    settings: dict[str, Any] = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise QueryError(f"{text!r} is no setting; expected NAME=VALUE")
        try:
            settings[name.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            settings[name.strip()] = value
    return settings


def parse_size(text: str | None) -> int | None:
    """Read a number of bytes such as 500M, 4G or 4GB (powers of 1000)."""
    if text is None:
        return None
    scale = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    stripped = text.strip().upper().removesuffix("B")
    factor = scale.get(stripped[-1:], 1)
    try:
        if "_" in stripped:
            raise ValueError
        return int(float(stripped[:-1] if factor > 1 else stripped) * factor)
    except (ValueError, OverflowError):
        told = f"{text!r} is no number of bytes; expected a number with K, M, G or T behind it"
        raise QueryError(told) from None


def merged(parts: Iterable[Evidence]) -> Evidence:
    """Join evidence from several places; raise QueryError for contradictions."""
    out: Evidence = {}
    for part in parts:
        for name, value in part.items():
            if value is None:
                continue
            if name in out and out[name] != value:
                raise QueryError(f"variable {name!r} has the evidence {out[name]!r} and {value!r}; give one")
            out[name] = value
    return out


option = partial(typer.Option, show_default=False)  # of an option whose default is to do nothing
argument = partial(typer.Argument, show_default=False)


class EvidLayout(StrEnum):
    """The layouts of .evid files."""

    SINGLE = "single"
    CASES = "cases"


ModelArgument = Annotated[Path, argument(metavar="MODEL", help=f"A model: {suffixes()}, .gz of each.")]
EncodingOption = Annotated[
    str | None,
    option("--encoding", metavar="NAME", help="Encoding of text files, such as latin-1 or utf-16; else UTF-8."),
]
SeparatorOption = Annotated[
    str | None,
    option(
        "--separator",
        metavar="SIGN",
        help="What stands between the cells of a .csv: comma, semicolon, tab, bar, space, or a character. "
        "Otherwise the first four are tried.",
    ),
]
DoOption = Annotated[
    list[str] | None,
    option("--do", metavar="X=a,Y=b", help="States set from outside; parents are cut; repeatable."),
]
SettingsOption = Annotated[
    list[str] | None, option("--set", metavar="NAME=VALUE", help="A setting of the method; repeatable.")
]
WorkersOption = Annotated[int | None, option("--workers", help="Threads; the answer does not depend on it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class ConstraintOptions:
    """Constraints on the answer."""

    constraints: Annotated[
        Path | None, option("--constraints", metavar="FILE.json", help="A list of rules that the answers satisfy.")
    ] = None
    at_most: Annotated[
        list[str] | None,
        option("--at-most", metavar="K:A,B,C=STATE", help="At most K of these have the state; repeatable."),
    ] = None
    never: Annotated[
        list[str] | None, option("--never", metavar="A=x,B=y", help="Never all of these together; repeatable.")
    ] = None

    def read(self, domain: Domain) -> list[Constraint]:
        """Return the constraints of all three options."""
        found = [] if self.constraints is None else list(constraints_of(parsed_json(self.constraints)))
        for text in self.at_most or ():
            number, colon, rest = text.partition(":")
            names, equals, label = rest.rpartition("=")
            if not colon or not equals or not number.strip().isdecimal():
                raise QueryError(f"--at-most {text!r} is no constraint; expected K:A,B,C=STATE")
            listed = split_list(names)
            found.append(AtMost(int(number), listed, domain[listed[0]].parse(label.strip())))
        return found + [Never(dict(parse_evidence([text], domain))) for text in self.never or ()]


@dataclass(frozen=True)
class EvidenceOptions:
    """A model, the query variables, and evidence."""

    model: ModelArgument
    query: Annotated[
        list[str] | None,
        option("--query", "-q", metavar="A,B", help="Query variables; repeatable. Omitted: all without evidence."),
    ] = None
    evidence: Annotated[
        list[str] | None, option("--evidence", "-e", metavar="X=a,Y=b", help="Observed states; repeatable.")
    ] = None
    evidence_file: Annotated[
        Path | None,
        option("--evidence-file", "--rows", help=f"Evidence, row by row: {suffixes(files.EVIDENCE_FORMATS)}."),
    ] = None
    by_step: Annotated[
        Path | None, option("--by-step", metavar="FILE.csv", help="Evidence of a sequence, a row per step.")
    ] = None
    steps: Annotated[
        int | None,
        option("--steps", help="The steps of a network over x[0] and x[1]; else the rows of --by-step."),
    ] = None
    evid_kind: Annotated[EvidLayout | None, option("--evid-kind", help="How an ambiguous .evid is read.")] = None
    strict: Annotated[bool, typer.Option("--strict", help="Refuse tables with columns that are no variables.")] = (
        False
    )
    lenient: Annotated[bool, typer.Option("--lenient", help="Cells that are no states count as missing.")] = False
    encoding: EncodingOption = None
    separator: SeparatorOption = None
    do: DoOption = None

    @property
    def text(self) -> TextOptions:
        """How text files are read."""
        layout = None if self.evid_kind is None else self.evid_kind.value
        return TextOptions(self.encoding, self.separator, layout, self.strict, self.lenient)

    @property
    def n_steps(self) -> int | None:
        """The number of steps that a network of two slices is unrolled to."""
        return files.read_steps(self.by_step, self.text)[0] if self.by_step and self.steps is None else self.steps

    def read_model(self) -> Model:
        model = certimap.read(self.model, encoding=self.encoding)
        return after(self.do, model if self.n_steps is None else certimap.unroll(model, self.n_steps))

    def rows(self, domain: Domain, query_file: Path | None = None, fill: bool = False) -> list[BatchRow]:
        """Join options and files into queries: one, or one per case of a file.

        A row's label of a query variable is no evidence; with `fill` it is, and the query is of the empty cells.
        """
        names = parse_query(self.query, domain)
        given = parse_evidence(self.evidence, domain)
        if self.by_step is not None:
            given = merged((given, files.read_steps(self.by_step, self.text)[1](domain)))
        if names is not None and query_file is not None:
            raise QueryError("--query and --query-file both name the query; give one of them")
        asked = [EvidenceCase("", lambda: (names, {}))]
        rows = [EvidenceCase("", lambda: (None, {}))]
        if query_file is not None:
            asked = files.read_query_cases(query_file, domain, self.text)
        if self.evidence_file is not None:
            text = replace(self.text, lenient=() if fill else tuple(names or ()))
            rows = files.read_evidence_cases(self.evidence_file, domain, text)
        if len(asked) > 1 and len(rows) == len(asked):
            pairs = list(zip(asked, rows, strict=True))
        elif len(asked) > 1 and len(rows) > 1:
            text = f"{query_file} holds {len(asked)} cases and {self.evidence_file} {len(rows)}"
            raise QueryError(f"{text}; expected equal numbers")
        else:
            pairs = [(one, row) for one in asked for row in rows]

        def joined(one: EvidenceCase, row: EvidenceCase) -> Asked:
            (variables, more), (_, found) = one.read(), row.read()
            known = {name for name, v in found.items() if v is not None and isinstance(v, PLAIN)}
            if fill:
                return [n for n in variables or found if found.get(n) is None], merged((given, more, found))
            own = {n: value for n, value in found.items() if n not in known.intersection(variables or ())}
            return variables, merged((given, more, own))

        return [
            BatchRow(number, lambda one=one, row=row: joined(one, row), row.place or one.place)
            for number, (one, row) in enumerate(pairs, 1)
        ]

    def read_rows(self) -> TextTable | None:
        """Return the table of --rows, if it is one."""
        if self.evidence_file is None or suffix_of(self.evidence_file) not in (*SUFFIXES, *CASES):
            return None
        return read_text_table(self.evidence_file, encoding=self.encoding, separator=self.separator)

    def read_case(self, query_file: Path | None = None) -> tuple[Model, list[str] | None, dict[str, Any]]:
        """Read the model, and the query and evidence of one case."""
        source = self.read_model()
        rows = self.rows(source.domain, query_file)
        if len(rows) != 1:
            raise QueryError(f"{self.evidence_file or query_file} holds {len(rows)} cases; one is expected here")
        return source, *rows[0].ask()


QueryFileOption = Annotated[
    Path | None, option("--query-file", help=f"Query variables: {suffixes(files.QUERY_FORMATS)}.")
]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its parameters that are dataclasses as options of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, given in inspect.signature(command).parameters.items():
        own = [given.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)]
        if name in groups:
            of_fields = get_type_hints(groups[name], include_extras=True)
            own = [
                own[0].replace(
                    name=field.name,
                    default=inspect.Parameter.empty if field.default is MISSING else field.default,
                    annotation=of_fields[field.name],
                )
                for field in fields(groups[name])
            ]
        parameters += own

    @wraps(command)
    def spread_out(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    spread_out.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(spread_out)["__signature__"] = inspect.Signature(parameters)
    return spread_out
