"""Options that several commands take, and the query and evidence of one case or many."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from certimap.ask.batch import BatchRow
from certimap.cli import inputs
from certimap.core.domain import Domain
from certimap.errors import QueryError
from certimap.io.evidence import (
    EVIDENCE_FORMATS,
    QUERY_FORMATS,
    Asked,
    EvidenceCase,
    TextOptions,
    read_evidence_cases,
    read_query_cases,
)
from certimap.io.formats import suffixes

if TYPE_CHECKING:
    from certimap.core.model import Model

option = partial(typer.Option, show_default=False)  # of an option whose default is to do nothing
argument = partial(typer.Argument, show_default=False)


class EvidLayout(StrEnum):
    """The layouts of .evid files."""

    SINGLE = "single"
    CASES = "cases"


ModelArgument = Annotated[Path, argument(metavar="MODEL", help=f"A model: {suffixes()}, .gz of each.")]
EncodingOption = Annotated[
    str | None,
    option(
        "--encoding",
        metavar="NAME",
        help="Encoding of all text files named, such as latin-1 or utf-16; otherwise UTF-8.",
    ),
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
SettingsOption = Annotated[
    list[str] | None, option("--set", metavar="NAME=VALUE", help="A setting of the method; repeatable.")
]
WorkersOption = Annotated[int | None, option("--workers", help="Threads; the answer does not depend on it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
        option(
            "--evidence-file",
            "--rows",
            help=f"Evidence, one query per row of a table: {suffixes(EVIDENCE_FORMATS)}.",
        ),
    ] = None
    evid_kind: Annotated[EvidLayout | None, option("--evid-kind", help="How an ambiguous .evid is read.")] = None
    encoding: EncodingOption = None
    separator: SeparatorOption = None

    @property
    def text(self) -> TextOptions:
        """How text files are read."""
        return TextOptions(self.encoding, self.separator, None if self.evid_kind is None else self.evid_kind.value)

    def read_model(self) -> Model:
        import certimap

        return certimap.read(self.model, encoding=self.encoding)

    def rows(self, domain: Domain, query_file: Path | None = None) -> list[BatchRow]:
        """Join options and files into queries: one, or one per case of a file."""
        names = inputs.parse_query(self.query, domain)
        given = inputs.parse_evidence(self.evidence, domain)
        if names is not None and query_file is not None:
            raise QueryError("--query and --query-file both name the query; give one of them")
        asked = [EvidenceCase("", lambda: (names, {}))]
        rows = [EvidenceCase("", lambda: (None, {}))]
        if query_file is not None:
            asked = read_query_cases(query_file, domain, self.text)
        if self.evidence_file is not None:
            rows = read_evidence_cases(self.evidence_file, domain, self.text)
        if len(asked) > 1 and len(rows) == len(asked):
            pairs = list(zip(asked, rows, strict=True))
        elif len(asked) > 1 and len(rows) > 1:
            raise QueryError(
                f"{query_file} holds {len(asked)} cases and {self.evidence_file} {len(rows)}; "
                "expected equal numbers"
            )
        else:
            pairs = [(one, row) for one in asked for row in rows]

        def joined(one: EvidenceCase, row: EvidenceCase) -> Asked:
            (variables, more), (_, found) = one.read(), row.read()
            return variables, inputs.merged((given, more, found))

        return [
            BatchRow(number, lambda one=one, row=row: joined(one, row), row.place or one.place)
            for number, (one, row) in enumerate(pairs, 1)
        ]

    def read_case(self, query_file: Path | None = None) -> tuple[Model, list[str] | None, dict[str, Any]]:
        """Read the model, and the query and evidence of one case."""
        source = self.read_model()
        rows = self.rows(source.domain, query_file)
        if len(rows) != 1:
            raise QueryError(f"{self.evidence_file or query_file} holds {len(rows)} cases; one is expected here")
        return source, *rows[0].ask()


QueryFileOption = Annotated[
    Path | None, option("--query-file", help=f"Query variables: {suffixes(QUERY_FORMATS)}.")
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
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
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
