"""Networks as sparse tables: libDAI's `.fg`, and toulbar2's `.wcsp` and `.cfn`, whose costs are -ln of weights.

    1    2  0 7  2 3  2  0 .3  5 .7                             (.fg: positions, the first variable fastest)
    NAME 2 3 1 100   2 3   2 0 1 100 2  0 0 12  1 2 7           (.wcsp)
    {problem: {name: N, mustbe: "<99.5"}, variables: {a: [x, y], b: 3},
     functions: {f: {scope: [a, b], defaultcost: 99.5, costs: [x, 0, 1.25, y, 2, .7]}}}

Costs from the top (100 and 99.5 here) on are weights of 0; values that must be above a bound (">") are negated.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from certimap.core.arguments import is_list
from certimap.core.arrays import Floats
from certimap.core.domain import MAX_STATES, Categorical, Domain
from certimap.errors import ModelError
from certimap.io.declared import MAX_EXPANDED
from certimap.io.files import AnyPath, cut, parsing, read_text, write_text
from certimap.io.uai import Tokens
from certimap.io.words import numbers_of, written, written_names
from certimap.networks.factor import MAX_SCOPE, Factor
from certimap.networks.network import MarkovNetwork, Network

_SCALE = 10**6  # of costs that are no integers, in .wcsp
_SCALED = re.compile(r"certimap_times_([1-9]\d{0,11})", re.ASCII)
_WORD = re.compile(r'#[^\n]*|"[^"\n\[\]{}]*"|[\[\]{}]|[^\s,:\[\]{}"#]+|"')
_TAGS = ("scope", "defaultcost", "costs")


class _Tables:
    """Fills tables of which a file lists some entries; the others are limited in number."""

    def __init__(self, fail: Callable[[str], Exception]) -> None:
        self.fail, self.left = fail, MAX_EXPANDED

    def at(self, shape: Sequence[int], places: Floats, values: Floats, default: float) -> Floats:
        """Return a table with values at places, the last axis fastest."""
        n = math.prod(shape)
        self.left -= max(0, n - len(places))
        if self.left < 0:
            raise self.fail(f"more than {MAX_EXPANDED:,} entries are not listed, the most accepted")
        at = np.clip(places, -1.0, n).astype(np.int64)
        if np.any((at != places) | (at < 0) | (at >= n)) or len(np.unique(at)) < len(at):
            raise self.fail(f"the places of entries are not distinct whole numbers from 0 to {n - 1:,}")
        table = np.full(n, default)
        table[at] = values
        return table.reshape(shape)

    def of(self, shape: Sequence[int], rows: Floats, default: float) -> Floats:
        """Return a table from rows, each the states of a tuple and its cost."""
        if np.any(rows[:, :-1] >= np.array(shape)):
            raise self.fail("a tuple has a state that its variable does not have")
        strides = np.array([math.prod(shape[k + 1 :]) for k in range(len(shape))], np.float64)
        return self.at(shape, rows[:, :-1] @ strides, rows[:, -1], default)

    def factor(self, scope: list[int], shape: list[int], costs: Floats, top: float, scale: float = 1) -> Factor:
        """Return exp(-costs), which may be another function's."""
        if list(costs.shape) != shape:
            raise self.fail(f"costs of the shape {costs.shape} are shared by a function of the shape {shape}")
        return Factor.from_log(scope, np.where(costs >= top, -np.inf, -costs / scale))


def read_fg(path: AnyPath, encoding: str | None = None) -> MarkovNetwork:
    """Read a Markov network; variables are called by their labels, which are numbers, with states 0, 1, ...."""
    tokens, sizes, found = Tokens(path, read_text(path, encoding)), dict[int, int](), list[Factor]()
    tables = _Tables(tokens.fail)
    with parsing(path):
        for _ in range(tokens.integer("the number of factors")):
            n = tokens.integer("the number of a factor's variables", high=MAX_SCOPE + 1)
            labels, shape = tokens.integers(n, "the label of a variable"), tokens.sizes(n)
            if any(sizes.setdefault(v, size) != size for v, size in zip(labels, shape, strict=True)):
                raise tokens.fail("a variable has another number of states than in an earlier factor")
            listed = tokens.numbers(2 * tokens.integer("the number of entries"), "a factor", False)
            values, zero = (listed.values, 0.0) if listed.logs is None else (listed.logs, -math.inf)
            table = tables.at(shape[::-1], listed.values[::2], values[1::2], zero)
            found.append((Factor if listed.logs is None else Factor.from_log)(labels[::-1], table))
        tokens.check_end()
        place = {label: k for k, label in enumerate(sorted(sizes))}
        domain = Domain(Categorical(str(label), tuple(range(sizes[label]))) for label in place)
        return MarkovNetwork(domain, [factor.over(tuple(place[v] for v in factor.scope)) for factor in found])


def write_fg(model: Network, path: AnyPath) -> None:
    """Write a network; names and state labels are lost, zeros are left out, and numbers read back exactly."""
    free = set(range(len(model.domain))).difference(*(factor.scope for factor in model.factors))
    factors = [*model.factors, *(Factor((v,), np.ones(int(model.domain.n_states[v]))) for v in sorted(free))]
    lines = [str(len(factors))]
    for factor in factors:
        words = [f"{k} {word}" for k, word in enumerate(written(factor)) if word not in ("0", "0.0")]
        head = [len(factor.scope)], factor.scope[::-1], factor.shape[::-1], [len(words)]
        lines += ["", *(" ".join(map(str, numbers)) for numbers in head), *words]
    write_text(path, "\n".join(lines) + "\n")


def read_wcsp(path: AnyPath, encoding: str | None = None) -> MarkovNetwork:
    """Read a Markov network, the product of exp(-cost) over all functions; global functions are refused."""
    tokens, shared, factors = Tokens(path, read_text(path, encoding)), list[Floats](), list[Factor]()
    tables, scaled = _Tables(tokens.fail), _SCALED.fullmatch(tokens.taken(1, "the name of the problem")[0])
    tokens.at = 1
    n, _, n_functions = (tokens.integer(f"the number of {what}") for what in ("variables", "states", "functions"))
    top, sizes = tokens.number("the header"), tokens.sizes(n)
    with parsing(path):
        for _ in range(n_functions):
            arity = tokens.integer("an arity", low=-MAX_SCOPE, high=MAX_SCOPE + 1)
            scope = tokens.integers(abs(arity), "a variable of a scope", high=n)
            shape, n_words = [sizes[v] for v in scope], len(scope) + 1
            if tokens.taken(1, "a default cost") == ["-1"]:
                raise tokens.fail(
                    f"a function is the keyword {cut(tokens.taken(2, 'it')[1])}; expected its tuples"
                )
            default, count = tokens.number("the costs"), tokens.integer("the number of tuples", low=-len(shared))
            rows = tokens.numbers(max(0, count) * n_words, "a tuple", False).values.reshape(-1, n_words)
            costs = shared[-count - 1] if count < 0 else tables.of(shape, rows, default)
            shared += [costs] if arity < 0 else []
            factors.append(tables.factor(scope, shape, costs, top, float(scaled[1]) if scaled else 1.0))
        tokens.check_end()
        return MarkovNetwork(Domain.of_sizes(sizes), factors)


def write_wcsp(model: Network, path: AnyPath) -> None:
    """Write costs -ln weight; names and labels are lost. Others than whole costs are scaled and rounded."""
    tables = [-factor.log_table for factor in model.factors]
    finite = [table[np.isfinite(table)] for table in tables]
    lowest = [min(0.0, float(costs.min(initial=0.0))) for costs in finite]
    scale = 1 if all(np.all(np.abs(costs - np.rint(costs)) <= 1e-9) for costs in finite) else _SCALE
    told = [f"costs are multiplied by {scale:,} and rounded"] if scale > 1 else []
    told += [f"the constant {sum(lowest):.9g} is left out, as costs are not negative"] if any(lowest) else []
    if told:
        warnings.warn(f"{path}: {', and '.join(told)}; .cfn keeps all", stacklevel=4)
    tables = [np.rint((table - low) * scale) for table, low in zip(tables, lowest, strict=True)]
    top = 1 + sum(int(table[np.isfinite(table)].max(initial=0.0)) for table in tables)
    if top >= 2**62:
        raise ModelError(f"{path}: costs add to {top:.3g}, beyond the integers of the format; .cfn holds them")
    name, sizes = f"certimap_times_{scale}" if scale > 1 else "certimap", model.domain.n_states.tolist()
    lines = [f"{name} {len(sizes)} {max(sizes, default=0)} {len(tables)} {top}", " ".join(map(str, sizes))]
    for factor, table in zip(model.factors, tables, strict=True):
        costs = np.where(np.isfinite(table), table, top).astype(np.int64)
        tuples = [f"{' '.join(map(str, index))} {costs[index]}" for index in np.ndindex(costs.shape) if index]
        head = len(factor.scope), *factor.scope, 0 if tuples else costs, len(tuples)
        lines += [" ".join(map(str, head)), *tuples]
    write_text(path, "\n".join(lines) + "\n")


def read_cfn(path: AnyPath, encoding: str | None = None) -> MarkovNetwork:
    """Read a Markov network, the product of exp(-cost) over all functions; those with a type are refused."""
    words = [word for word in _WORD.findall(read_text(path, encoding)) if word[0] != "#"]
    listed = ",".join("[" if w in "[{" else "]" if w in "]}" else json.dumps(w.strip('"')) for w in words)
    with parsing(path):
        try:
            parts = [part for part in json.loads(re.sub(r"(?<=\[),|,(?=\])", "", listed)) if is_list(part)]
        except (ValueError, RecursionError):
            raise ModelError("is no cost function network; expected brackets and quotes in pairs") from None
        bound = str(parts[0][-1]) if len(parts) == 3 and parts[0] else ""
        if bound[:1] not in ("<", ">"):
            raise ModelError("lacks a problem that must be '<' or '>' a number, or variables, or functions")
        sign = 1.0 if bound[0] == "<" else -1.0
        top = sign * float(_numbers([bound[1:]])[0])
        variables = [_variable(name or str(k), item) for k, (name, item) in enumerate(_named(parts[1]))]
        places, tables = {v.name: k for k, v in enumerate(variables)}, _Tables(ModelError)
        costs, uses = dict[str, Floats](), list[tuple[list[int], list[int], str]]()
        for k, (name, item) in enumerate(_named(parts[2])):
            body = [part for part in item if part not in _TAGS] if is_list(item) else []
            if len(body) not in (2, 3) or not is_list(body[0]) or "type" in item:
                raise ModelError(f"function {cut(name or str(k))} is no table; expected a scope and costs")
            scope, is_shared = [_place(word, places) for word in body[0]], isinstance(body[-1], str)
            own, source = [variables[v] for v in scope], body[-1] if is_shared else name or str(k)
            uses.append((scope, [v.n_states for v in own], source))
            if not is_shared:
                costs[source] = sign * _costs(own, body, tables)
        if lacking := [source for *_, source in uses if source not in costs]:
            raise ModelError(f"a function shares the costs of {cut(lacking[0])}, which has none of its own")
        factors = [tables.factor(scope, shape, costs[source], top) for scope, shape, source in uses]
        return MarkovNetwork(Domain(variables), factors)


def _named(items: Iterable[Any]) -> Iterator[tuple[str | None, Any]]:
    """Yield lists and numbers, each with the name before it or None."""
    name = None
    for item in items:
        is_name = isinstance(item, str) and item[:1] not in tuple("0123456789-+.")
        if not is_name:
            yield name, item
        name = item if is_name else None


def _numbers(words: Sequence[Any]) -> Floats:
    return numbers_of(list(map(str, words)), "is no cost", lambda told, _: ModelError(told), signed=True).values


def _place(word: Any, places: Mapping[str, int]) -> int:
    """Return the place of a name, or of a number that is no name."""
    text = str(word)
    if text not in places and not (text.isdecimal() and len(text) < 10 and int(text) < len(places)):
        raise ModelError(f"{cut(text)} is neither a name nor a number of the {len(places)} here")
    return places[text] if text in places else int(text)


def _variable(name: str, item: Any) -> Categorical:
    if is_list(item):
        return Categorical(name, tuple(map(str, item)))
    size = abs(float(_numbers([item])[0]))  # a negative one is an interval from 0
    if not 1 <= size <= MAX_STATES or size != int(size):
        raise ModelError(f"variable {cut(name)} has {size:g} states; expected 1 to {MAX_STATES:,}")
    return Categorical(name, tuple(range(int(size))))


def _costs(own: Sequence[Categorical], body: Sequence[Any], tables: _Tables) -> Floats:
    """Return the costs of all tuples: all are listed, or some with their states beside a default."""
    shape, words, n = [v.n_states for v in own], body[-1], len(own) + 1
    if len(words) != math.prod(shape) if len(body) == 2 else len(words) % n:
        raise ModelError(f"a function has {len(words):,} costs; expected {math.prod(shape):,}, or tuples")
    if len(body) == 2:
        return _numbers(words).reshape(shape)
    states = [{str(label): k for k, label in enumerate(v.states)} for v in own]
    columns = [[_place(word, known) for word in words[k::n]] for k, known in enumerate(states)]
    return tables.of(shape, np.array([*columns, _numbers(words[n - 1 :: n])]).T, float(_numbers([body[1]])[0]))


def write_cfn(model: Network, path: AnyPath) -> None:
    """Write costs -ln weight with all their digits; names and states become identifiers, with one warning."""
    names, tables = written_names(model, path, states_too=True), [-factor.log_table for factor in model.factors]
    finite = [table[np.isfinite(table)] for table in tables]
    top = 1.0 + sum(float(np.abs(costs).max(initial=0.0)) for costs in finite)
    digits = max(0, min(9, int(16.0 - math.log10(top))))  # toulbar2 keeps costs with so many in 64 bits
    variables, functions = json.dumps(dict(zip(names.names, names.states, strict=True))), list[str]()
    head = f'{{"problem": {{"name": "certimap", "mustbe": "<{top:.{digits}f}"}},\n"variables": {variables},\n'
    for k, (factor, table) in enumerate(zip(model.factors, tables, strict=True)):
        hard = f"{2 * top:.9f}"  # above the top, and with any negative costs too
        costs = ", ".join(f"{Decimal(repr(x)):f}" if x < math.inf else hard for x in table.reshape(-1).tolist())
        scope = json.dumps([names.names[v] for v in factor.scope])
        functions.append(f'"f{k}": {{"scope": {scope}, "costs": [{costs}]}}')
    write_text(path, head + '"functions": {\n' + ",\n".join(functions) + "\n}}\n")
