"""`certimap learn`: a table becomes a model."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from certimap.cli.inputs import parse_settings
from certimap.cli.options import EncodingOption, SeparatorOption, SettingsOption, argument, option

if TYPE_CHECKING:
    from certimap.io.text_tables import TextTable


class Method(StrEnum):
    """How a model is learned."""

    LEARNSPN = "learnspn"
    CHOW_LIU = "chow-liu"
    CLT_MIXTURE = "clt-mixture"
    HCLT = "hclt"
    MIXTURE = "mixture"
    GAUSSIAN_MIXTURE = "gaussian-mixture"
    REGION_GRAPH = "region-graph"


def learn(
    data: Annotated[
        Path, argument(metavar="DATA", help="A .csv with a header, or .data without one; .gz of either.")
    ],
    output: Annotated[Path, option("--output", "-o", help="Where the model goes; the suffix names its format.")],
    method: Annotated[Method, typer.Option("--method", help="What to learn.")] = Method.LEARNSPN,
    valid: Annotated[Path | None, option("--valid", help="A table that settings are chosen on.")] = None,
    test: Annotated[Path | None, option("--test", help="A table to report the mean log-likelihood of.")] = None,
    rng: Annotated[int | None, option("--rng", help="A seed.")] = None,
    time_limit: Annotated[float | None, option("--time-limit", help="Seconds to learn for.")] = None,
    encoding: EncodingOption = None,
    separator: SeparatorOption = None,
    settings: SettingsOption = None,
) -> None:
    """Learn a model from a table: columns become variables, the labels that occur become their states."""
    import certimap.learn
    from certimap import io
    from certimap.errors import SolverError
    from certimap.io.text_tables import has_header, read_text_table
    from certimap.kernels.notice import announce_compilation

    announce_compilation()

    def table_of(path: Path) -> TextTable:
        return read_text_table(path, header=has_header(path), encoding=encoding, separator=separator)

    options: dict[str, Any] = {"rng": rng, **parse_settings(settings)}
    if valid is not None:
        options["valid"] = table_of(valid).columns()
    if time_limit is not None:
        options["time_limit"] = time_limit
    function: Any = getattr(certimap.learn, method.value.replace("-", "_"))
    table = table_of(data)
    print(f"{data}: {table}", file=sys.stderr)
    try:
        model = function(table.columns(), **options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        name = str(error).split("'")[1]
        raise SolverError(
            f"method {method.value!r} has no setting {name!r}; see certimap.learn.{function.__name__}"
        ) from None
    io.write(model, output)
    print(f"{output}: {model!r}", file=sys.stderr)
    if test is not None:
        score = certimap.learn.score_samples(model, table_of(test).columns_of(model.domain)).mean()
        print(f"{test}: mean log-likelihood {score:.6f} nats", file=sys.stderr)
