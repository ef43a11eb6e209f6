"""The tables of file formats, and reading and writing models by theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import fspath
from typing import Any

from certimap.circuits.circuit import Circuit
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import ModelError, ParseError, did_you_mean
from certimap.io.bif import read_bif
from certimap.io.bif_writer import write_bif
from certimap.io.dne import read_dne, write_dne
from certimap.io.dsc import read_dsc, write_dsc
from certimap.io.dsl import read_dsl, write_dsl
from certimap.io.files import AnyPath, suffix_of
from certimap.io.jpc import read_jpc, write_jpc
from certimap.io.json_models import read_json
from certimap.io.linear_gaussian import write_linear_gaussian
from certimap.io.literal_weights import Weights
from certimap.io.native import read_native, write_native
from certimap.io.net import read_net, write_net
from certimap.io.nnf import read_nnf
from certimap.io.sdd import read_psdd, read_sdd
from certimap.io.spn import read_spn
from certimap.io.spn_writer import write_spn
from certimap.io.uai import read_uai, write_uai
from certimap.io.xdsl import read_xdsl, write_xdsl
from certimap.io.xmlbif import read_xmlbif, write_xmlbif
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.markov import MarkovNetwork


@dataclass(frozen=True)
class Format:
    """One file format.

    Attributes
    ----------
    name
        The suffix of its files, without the dot.
    holds
        What it can hold, in words.
    reader
        A model's is `reader(path)`, or `reader(path, encoding)` for text.
    writer
        `writer(model, path)`; None for a format that is only read.
    writes
        The classes that it can write; empty for any.
    is_text
        Whether its files have an encoding.
    is_weighted
        Whether the reader takes `weights` of literals, which its files lack.
    """

    name: str
    holds: str
    reader: Callable[..., Any]
    writer: Callable[[Any, AnyPath], None] | None = None
    writes: tuple[type[Any], ...] = ()
    is_text: bool = True
    is_weighted: bool = False


def table_of(*formats: Format) -> dict[str, Format]:
    """Return formats by name."""
    return {f.name: f for f in formats}


FORMATS: dict[str, Format] = table_of(
    Format("bif", "Bayesian networks", read_bif, write_bif, (BayesianNetwork,)),
    Format("uai", "Bayesian and Markov networks", read_uai, write_uai, (BayesianNetwork, MarkovNetwork)),
    Format("net", "Bayesian networks (Hugin)", read_net, write_net, (BayesianNetwork,)),
    Format("xdsl", "Bayesian networks (GeNIe)", read_xdsl, write_xdsl, (BayesianNetwork,)),
    Format("dsl", "Bayesian networks (GeNIe)", read_dsl, write_dsl, (BayesianNetwork,)),
    Format("dne", "Bayesian networks (Netica)", read_dne, write_dne, (BayesianNetwork,)),
    Format("dsc", "Bayesian networks (Microsoft)", read_dsc, write_dsc, (BayesianNetwork,)),
    Format("xmlbif", "Bayesian networks (XMLBIF)", read_xmlbif, write_xmlbif, (BayesianNetwork,)),
    Format("bifxml", "Bayesian networks (XMLBIF)", read_xmlbif, write_xmlbif, (BayesianNetwork,)),
    Format("xml", "Bayesian networks (XMLBIF)", read_xmlbif, write_xmlbif, (BayesianNetwork,)),
    Format("spn", "circuits", read_spn, write_spn, (Circuit,)),
    Format(
        "json",
        "linear-Gaussian networks, and circuits of deeprob-kit and SparC, which are only read",
        read_json,
        write_linear_gaussian,
        (LinearGaussianNetwork,),
    ),
    Format("jpc", "circuits (Juice)", read_jpc, write_jpc, (Circuit,)),
    Format("nnf", "Boolean circuits (d4, c2d)", read_nnf, is_weighted=True),
    Format("sdd", "Boolean circuits (SDD)", read_sdd, is_weighted=True),
    Format("psdd", "circuits (PSDD)", read_psdd),
    Format("npz", "any model", read_native, write_native, is_text=False),
)


def suffixes(table: Mapping[str, Format] = FORMATS, between: str = " ") -> str:
    """List the suffixes of a table of formats for a person to read."""
    return between.join(f".{name}" for name in table)


def format_of(
    path: AnyPath, format: str | None = None, table: Mapping[str, Format] = FORMATS, what: str = "model"
) -> Format:
    """Return the format that a name, or else the suffix of a path before any .gz, stands for.

    Parameters
    ----------
    path, format
        The file, and the name of its format where the suffix does not tell.
    table
        The formats to choose from.
    what
        What they hold, for the error.

    Returns
    -------
    Format

    Raises
    ------
    ParseError
        For any other name.
    """
    name = (suffix_of(path) if format is None else format).lower().removeprefix(".")
    found = table.get(name)
    if found is None:
        shown = f".{name}" if name else "a name without a suffix"
        raise ParseError(
            f"{shown!r} names no {what} format; expected {suffixes(table, ', ')}, each with "
            f".gz{did_you_mean(name, table)}",
            path,
        )
    return found


def read(
    path: AnyPath, format: str | None = None, encoding: str | None = None, weights: Weights | None = None
) -> Any:
    """Read a model.

    Parameters
    ----------
    path
        A file whose suffix is in `FORMATS` (.bif, .uai, .net, .xdsl, .spn, .npz, ...), or with .gz behind it.
    format
        One of these names, for a file with another suffix.
    encoding
        Of a text format, such as "latin-1"; None stands for UTF-8, or what a byte order mark says.
    weights
        Weights of literals for .nnf and .sdd, by number or as the file that has them; None for 1 each.

    Returns
    -------
    A `BayesianNetwork`, `MarkovNetwork`, `LinearGaussianNetwork`, `Circuit` or learned model.

    Raises
    ------
    ParseError
        For an unknown format, a file that cannot be read, and one that does not follow its format; nothing else,
        whatever the file holds.
    ModelError
        For weights of literals with a format that has its own, and weights that are none.
    """
    chosen = format_of(path, format)
    if weights is not None and not chosen.is_weighted:
        raise ModelError(
            f"weights of literals are given for {fspath(path)}, and .{chosen.name} has parameters of its own; "
            f"{suffixes({k: f for k, f in FORMATS.items() if f.is_weighted}, ' and ')} take them"
        )
    options = {"weights": weights} if chosen.is_weighted else {}
    return chosen.reader(path, encoding, **options) if chosen.is_text else chosen.reader(path)


def write(model: Any, path: AnyPath, format: str | None = None) -> None:
    """Write a model, whole or not at all; the suffix of `path`, or `format`, names the format.

    Parameters
    ----------
    model
        A model.
    path
        Its suffix names the format; with .gz behind it, it is compressed.
    format
        A suffix, for a file with another one.

    Raises
    ------
    ParseError
        For an unknown format.
    ModelError
        When the format cannot hold the model.
    """
    chosen = format_of(path, format)
    if chosen.writer is None or (chosen.writes and not isinstance(model, chosen.writes)):
        raise ModelError(
            f"a {type(model).__name__} cannot be written to {fspath(path)}: .{chosen.name} holds {chosen.holds}; "
            ".npz holds any model"
        )
    chosen.writer(model, path)
