"""The tables of file formats; reads and writes models by format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from certimap.core.arguments import keywords_hinted, shown
from certimap.core.model import Model
from certimap.core.named import Named, is_one_of
from certimap.errors import ModelError, ParseError, did_you_mean
from certimap.io.files import TABLES, AnyPath, suffix_of

if TYPE_CHECKING:
    from certimap.io.logic import Weights


@dataclass(frozen=True)
class Format:
    """One file format.

    `name`, `holds`: the suffix of its files, without the dot, and a description of their contents. `reader`,
    `writer`: for models `reader(path)`, or `reader(path, encoding)` for text, and `writer(model, path)`, or None;
    the first call loads the module of either. `writes`: the classes that it can write, "module:Class"; empty for
    any. `is_text`, `is_weighted`: whether its files have an encoding; whether it takes `weights` of literals.
    """

    name: str
    holds: str
    reader: Callable[..., Any]
    writer: Callable[[Any, AnyPath], None] | None = None
    writes: tuple[str, ...] = ()
    is_text: bool = True
    is_weighted: bool = False


def table_of(*formats: Format) -> dict[str, Format]:
    """Return formats by name."""
    return {f.name: f for f in formats}


_BAYESIAN = ("certimap.networks.bayesian:BayesianNetwork",)
_DECISIONS = ("certimap.decisions.network:DecisionNetwork",)
_MARKOV = ("certimap.networks.network:MarkovNetwork",)
_CIRCUIT = ("certimap.circuits.circuit:Circuit",)
_LINEAR_GAUSSIAN = ("certimap.densities.linear_gaussian:LinearGaussianNetwork",)


def _format(
    name: str, holds: str, reader: str, writer: str = "", writes: tuple[str, ...] = (), **more: bool
) -> Format:
    """Return a format; its functions are given by name, such as "bif:read_bif"."""
    write = Named(f"certimap.io.{writer}") if writer else None
    return Format(name, holds, Named(f"certimap.io.{reader}"), write, writes, **more)


def _of_networks(name: str, module: str, what: str, program: str = "", decisions: bool = False) -> Format:
    """Return a format for Bayesian networks, and for decision networks too."""
    holds, kinds = f"Bayesian {'and decision ' * decisions}networks{program}", _BAYESIAN + _DECISIONS * decisions
    return _format(name, holds, f"{module}:read_{what}", f"{module}:write_{what}", kinds)


FORMATS: dict[str, Format] = table_of(
    _of_networks("bif", "bif", "bif"),
    _format("uai", "networks of all kinds", "uai:read_uai", "uai:write_uai", _BAYESIAN + _MARKOV + _DECISIONS),
    *(
        _format(name, f"networks ({program})", f"costs:read_{name}", f"costs:write_{name}", _BAYESIAN + _MARKOV)
        for name, program in (("fg", "libDAI"), ("wcsp", "toulbar2"), ("cfn", "toulbar2"))
    ),
    _of_networks("net", "brace_networks", "net", " (Hugin)", True),
    _of_networks("xdsl", "xml_files", "xdsl", " (GeNIe)", True),
    _of_networks("dsl", "brace_networks", "dsl", " (GeNIe)"),
    _of_networks("dne", "brace_networks", "dne", " (Netica)"),
    _of_networks("dsc", "brace_networks", "dsc", " (Microsoft)"),
    _format("xbn", "Bayesian networks (Microsoft)", "xml_networks:read_xbn"),
    _format("opsa", "fault trees (Open-PSA)", "fault_trees:read_opsa"),
    _format("pomdpx", "chance parts of decision processes (PomdpX)", "xml_networks:read_pomdpx"),
    _format("hmm", "profiles (HMMER 3)", "hmmer:read_hmmer"),
    _of_networks("pgmx", "xml_networks", "pgmx", " (OpenMarkov)", True),
    *(_of_networks(name, "xml_files", "xmlbif", " (XMLBIF)", True) for name in ("xmlbif", "bifxml")),
    _format(
        "xml", "networks as XML", "xml_networks:read_by_root", "xml_files:write_xmlbif", _BAYESIAN + _DECISIONS
    ),
    _format("spn", "circuits", "spn:read_spn", "spn:write_spn", _CIRCUIT),
    _format(
        "json",
        "linear-Gaussian networks, and circuits (deeprob-kit; SparC's are only read)",
        "json_models:read_json",
        "json_models:write_json",
        _LINEAR_GAUSSIAN + _CIRCUIT,
    ),
    _format("jpc", "circuits (Juice)", "jpc:read_jpc", "jpc:write_jpc", _CIRCUIT),
    _format("nnf", "Boolean circuits (d4, c2d)", "logic:read_nnf", is_weighted=True),
    _format("sdd", "Boolean circuits (SDD)", "logic:read_sdd", is_weighted=True),
    _format("psdd", "circuits (PSDD)", "logic:read_psdd"),
    _format("npz", "any model", "native:read_native", "native:write_native", is_text=False),
)


def suffixes(table: Mapping[str, Format] = FORMATS, between: str = " ") -> str:
    """List the suffixes of a table of formats for a person to read."""
    return between.join(f".{name}" for name in table)


def format_of(
    path: AnyPath, format: str | None = None, table: Mapping[str, Format] = FORMATS, what: str = "model"
) -> Format:
    """Return the `format` of a name, or else of the suffix of a `path` before any .gz, in a `table` of formats.

    `what`: their contents, for the error message. Raises ParseError for an unknown name or suffix.
    """
    if not isinstance(path, str | PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModelError(f"a {type(path).__name__} was given; expected the path of a {what} file")
    if not isinstance(format, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(f"format is {shown(format)}; expected the name of a {what} format or None", path)
    name = (suffix_of(path) if format is None else format).lower().removeprefix(".")
    found = table.get(name)
    if found is None:
        told, hint = f".{name}" if name else "a name without a suffix", did_you_mean(name, table)
        if name in TABLES and what == "model":
            hint = "; a table is no model, and cm.learn.hclt(data) learns one from its rows"
        text = f"{told!r} names no {what} format; expected {suffixes(table, ', ')}"
        raise ParseError(f"{text}, each with .gz{hint}", path)
    return found


@keywords_hinted()
def read(
    path: AnyPath, format: str | None = None, encoding: str | None = None, weights: Weights | None = None
) -> Model:
    """Return the model in a file: a network, a circuit or a learned model.

    - `path`: a file whose suffix is in `FORMATS` (.bif, .uai, .net, .xdsl, .spn, .npz, ...), or with .gz behind.
    - `format`: one of these names, for a file with another suffix.
    - `encoding`: of a text format, such as "latin-1"; None means UTF-8, or the encoding of a byte order mark.
    - `weights`: weights of literals for .nnf and .sdd, by number or as a file; None for 1 each.

    Raises ParseError for an unknown format, an unreadable file, and a file that violates its format (no file
    content leads to any other error), and ModelError for weights of literals with a format that has its own, and
    for invalid weights.
    """
    chosen = format_of(path, format)
    if weights is not None and not chosen.is_weighted:
        told = f"weights of literals are given for {fspath(path)}, and .{chosen.name} has parameters of its own"
        raise ModelError(
            f"{told}; {suffixes({k: f for k, f in FORMATS.items() if f.is_weighted}, ' and ')} take them"
        )
    options = {"weights": weights} if chosen.is_weighted else {}
    return chosen.reader(path, encoding, **options) if chosen.is_text else chosen.reader(path)


@keywords_hinted()
def write(model: Any, path: AnyPath, format: str | None = None) -> None:
    """Write a `model` to a file, whole or not at all, as `model.write(path)` does.

    The suffix of `path` names the format (see `read`), and .gz behind it compresses; `format` overrides it. Raises
    ParseError for an unknown format, with a list of the known ones, and ModelError if it cannot hold the model.
    """
    chosen = format_of(path, format)
    if isinstance(model, Model) and chosen.writes and not is_one_of(model, chosen.writes):
        model = next((made for view in model.views if is_one_of(made := view(model), chosen.writes)), model)
    if chosen.writer is None or (chosen.writes and not is_one_of(model, chosen.writes)):
        text = f"a {type(model).__name__} cannot be written to {fspath(path)}: .{chosen.name} holds {chosen.holds}"
        raise ModelError(f"{text}; .npz holds any model")
    chosen.writer(model, path)
