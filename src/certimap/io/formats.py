"""The table of model formats, and reading and writing by it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any, cast

from certimap.errors import ModelError, ParseError
from certimap.io.files import AnyPath


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes
    ----------
    name
        The suffix of its files, without the dot.
    holds
        What it can hold, in words.
    module
        Where its reader and writer are; loaded on first use.
    reader, writer
        Their names: `reader(path) -> model`, `writer(model, path)`.
    writes
        Names of the classes that it can write; empty for any.
    """

    name: str
    holds: str
    module: str
    reader: str
    writer: str
    writes: tuple[str, ...]

    def function(self, name: str) -> Callable[..., Any]:
        return cast("Callable[..., Any]", getattr(importlib.import_module(self.module), name))


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("bif", "Bayesian networks", "certimap.io.bif", "read_bif", "write_bif", ("BayesianNetwork",)),
        Format(
            "uai",
            "Bayesian and Markov networks",
            "certimap.io.uai",
            "read_uai",
            "write_uai",
            ("BayesianNetwork", "MarkovNetwork"),
        ),
        Format("spn", "circuits", "certimap.io.spn", "read_spn", "write_spn", ("Circuit",)),
        Format("npz", "any model", "certimap.io.native", "read_native", "write_native", ()),
    )
}


def format_of(path: AnyPath, format: str | None = None) -> Format:
    """Return the format that a name, or else the suffix of a path before any .gz, stands for.

    Raises ParseError for any other.
    """
    name = format
    if name is None:
        suffixes = [s.lower() for s in Path(fspath(path)).suffixes]
        if suffixes and suffixes[-1] == ".gz":
            suffixes.pop()
        name = suffixes[-1] if suffixes else ""
    found = FORMATS.get(name.lower().removeprefix("."))
    if found is None:
        accepted = ", ".join(f".{f}" for f in FORMATS)
        raise ParseError(
            f"{name or 'no suffix'!r} names no model format; {accepted} are accepted, each with .gz", path
        )
    return found


def read(path: AnyPath, format: str | None = None) -> Any:
    """Read a model.

    Parameters
    ----------
    path
        A file named .bif, .uai, .spn or .npz, or each with .gz.
    format
        One of these names, for a file with another suffix.

    Returns
    -------
    A `BayesianNetwork`, `MarkovNetwork`, `Circuit` or learned model.

    Raises
    ------
    ParseError
        For an unknown format, a file that cannot be read, and one that does not follow its format.
    """
    chosen = format_of(path, format)
    return chosen.function(chosen.reader)(path)


def write(model: Any, path: AnyPath, format: str | None = None) -> None:
    """Write a model, whole or not at all; the suffix of `path`, or `format`, names the format.

    Raises
    ------
    ParseError
        For an unknown format.
    ModelError
        When the format cannot hold the model.
    """
    chosen = format_of(path, format)
    kinds = {c.__name__ for c in type(model).__mro__}
    if chosen.writes and not kinds & set(chosen.writes):
        raise ModelError(
            f"a {type(model).__name__} cannot be written to {fspath(path)}: .{chosen.name} holds {chosen.holds}; "
            ".npz holds any model"
        )
    chosen.function(chosen.writer)(model, path)
