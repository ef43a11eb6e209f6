"""`certimap learn`: from a table to a model, what became of its columns, and how much the model tells."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from certimap import io
from certimap.cli import options
from certimap.cli.options import EncodingOption, argument, option, split_list
from certimap.errors import ModelError, QueryError
from certimap.io.formats import format_of
from certimap.io.text_tables import TextTable, has_header, read_text_table


class Method(StrEnum):
    """How a model is learned."""

    LEARNSPN, AUTO, CHOW_LIU, CLT_MIXTURE = "learnspn", "auto", "chow-liu", "clt-mixture"
    HCLT, MIXTURE, GAUSSIAN_MIXTURE, REGION_GRAPH = "hclt", "mixture", "gaussian-mixture", "region-graph"
    BIC, FIT = "bic", "fit"


Words = list[str] | None


@dataclass(frozen=True)
class TableOptions:
    """How a table is read, what its columns become, and which rows judge the model."""

    columns: Annotated[Words, option("--columns", metavar="A,B", help="The columns to learn.")] = None
    drop: Annotated[Words, option("--drop", metavar="A,B", help="Columns to leave out.")] = None
    kinds: Annotated[
        Words, option("--kinds", metavar="A=KIND,...", help="categorical, real, count, or day (of dates).")
    ] = None
    missing: Annotated[
        Words, option("--missing", metavar="MARK,...", help="More marks of missing cells, such as '*'.")
    ] = None
    pool: Annotated[
        int, typer.Option("--pool", metavar="N", help="Labels of fewer than N rows become one state, (other).")
    ] = 0
    structure: Annotated[
        Path | None,
        option("--structure", help="Learn the tables of this: a model, .json of parents, or lines a->b."),
    ] = None
    decimal: Annotated[
        str | None, option("--decimal", metavar="SIGN", help="The sign before decimals, where cells do not tell.")
    ] = None
    valid: Annotated[Path | None, option("--valid", help="A table that settings are chosen on.")] = None
    test: Annotated[Path | None, option("--test", help="A table to report the mean log-likelihood of.")] = None
    held_out: Annotated[bool, typer.Option(help="Without these, a tenth of the rows judges.")] = True
    encoding: EncodingOption = None
    separator: options.SeparatorOption = None

    def read(self, path: Path) -> TextTable:
        """Read a table of text."""
        if self.decimal not in (None, ".", ","):
            raise QueryError(f"--decimal is {self.decimal!r}; expected . or ,")
        return read_text_table(
            path, header=has_header(path), encoding=self.encoding, separator=self.separator,
            decimal=self.decimal, missing=_listed(self.missing),
        )  # fmt: skip


def learn(
    data: Annotated[
        Path, argument(metavar="DATA", help="A text table with a header, or .data without one; .gz of either.")
    ],
    output: Annotated[Path, option("--output", "-o", help="Where the model goes; the suffix names its format.")],
    table: TableOptions,
    method: Annotated[Method, option("--method", help="What to learn; auto: the best.")] = Method.LEARNSPN,
    rng: Annotated[int | None, option("--rng", help="A seed.")] = None,
    time_limit: Annotated[float | None, option("--time-limit", help="Seconds to learn for.")] = None,
    settings: options.SettingsOption = None,
) -> None:
    """Learn a model from a table: columns become variables, the labels that occur become their states.

    Prints what each column became (columns that tell nothing are left out, with the reason), and the mean
    log-likelihood of rows that the model was not learned from, beside that of a model of independent columns.
    """
    from certimap.kernels.notice import announce_compilation
    from certimap.learn import prepare, score_samples
    from certimap.learn.choice import INDEPENDENCE, TRIED, best_of, learned

    method = method if table.structure is None else Method.FIT
    _check_output(output, method)
    announce_compilation()
    given: Any = {"rng": rng, **options.parse_settings(settings)}
    if time_limit is not None or method is not Method.AUTO:
        given["time_limit"] = time_limit
    text = table.read(data)
    _say(f"{data}: {text}")
    kinds: Any = {name.strip(): kind.strip() for name, _, kind in (x.partition("=") for x in _listed(table.kinds))}
    chosen = _listed(table.columns) or None
    if table.structure is not None:
        given["structure"] = _structure(table.structure)
        names = [name for name in given["structure"] if name not in given.get("hidden", ())]
        chosen = chosen if "sequence" in given else names
    rows = prepare(text, kinds=kinds, columns=chosen, drop=_listed(table.drop), pool=table.pool)
    best, scores = method.value, dict[str, float]()
    held_out = table.held_out and "sequence" not in given and len(text.rows) >= 20
    if method is Method.AUTO or (held_out and table.valid is table.test is None):
        model, best, scores = best_of(rows, TRIED if method is Method.AUTO else [best], **given)
    else:
        if table.valid is not None:
            given["valid"] = prepare(table.read(table.valid), kinds=kinds, columns=list(rows))
        model = learned(best, rows, **given)
    _say(f"\n{model.source_columns}\n")
    io.write(model, output)
    _say(f"{output}: {model!r}{' by ' + best if method is Method.AUTO else ''}")
    if scores:
        ranked = sorted(scores, key=scores.__getitem__, reverse=True)
        _say("mean log-likelihoods of held-out rows by models of the others, in nats:\n")
        _say("\n".join(f"  {scores[name]:.6f}  {name}" for name in ranked) + "\n")
        _say(f"a row is {scores[best] - scores[INDEPENDENCE]:.6f} nats more probable than by independent columns")
    if table.test is not None:
        score = score_samples(model, table.read(table.test).columns_of(model.domain)).mean()
        _say(f"{table.test}: mean log-likelihood {score:.6f} nats")


def _structure(path: Path) -> dict[str, list[str]]:
    """Read the structure of a model, parents by children from .json, or edges, a line each."""
    from certimap.interop.networkx_graphs import parents_in

    if path.suffix not in ("", ".txt", ".csv", ".json"):
        return parents_in(io.read(path))
    text = path.read_text(encoding="utf-8")
    lines = [re.split(r"\s*(?:->|,)\s*", line.strip()) for line in text.splitlines() if line.strip()]
    return parents_in(json.loads(text) if path.suffix == ".json" else lines)


def _listed(texts: list[str] | None) -> list[str]:
    return [part for text in texts or () for part in split_list(text)]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _check_output(path: Path, method: Method) -> None:
    """Raise an error before anything is learned if the file cannot hold what the method makes."""
    chosen = format_of(path)
    networks = {Method.CHOW_LIU: ["Bayesian", "Circuit"], Method.BIC: ["Bayesian"], Method.FIT: ["Bayesian"]}
    made = networks.get(method, [] if method is Method.GAUSSIAN_MIXTURE else ["Circuit"])
    fits = not chosen.writes or any(kind in place for place in chosen.writes for kind in made)
    if chosen.writer is None or not fits:
        text = f"a model of {method.value} cannot be written to {path}: .{chosen.name} holds {chosen.holds}"
        raise ModelError(f"{text}; .npz holds any model")
    if not path.resolve().parent.is_dir():
        raise QueryError(f"the model goes to {str(path)!r}, and {str(path.parent)!r} is no folder")
