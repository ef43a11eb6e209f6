"""Names for formats that accept only identifiers (other names are converted), and labels of states in JSON."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from certimap.core.arguments import is_list, is_tuple, plain_scalar
from certimap.core.domain import Categorical, Label
from certimap.errors import ModelError
from certimap.io.files import AnyPath
from certimap.networks.network import Network

_OTHER = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class WrittenNames:
    """Written names of a model's variables and states.

    `names`, `states`: in the order of the domain; one list of states for each variable. `labels`: the model's own
    names, for formats with a field for a title.
    """

    names: list[str]
    states: list[list[str]]
    labels: tuple[str, ...]


def written_names(model: Network, path: AnyPath, *, states_too: bool, longest: int | None = None) -> WrittenNames:
    """Return names that are identifiers: a letter, then letters, digits and underscores.

    States are converted too where `states_too`, else kept as text; names have at most `longest` characters. Warns
    once if anything is converted; raises ModelError if two states of a variable are equal as text.
    """
    names = _identifiers(model.domain.names, "x", longest)
    changed = [pair for pair in zip(model.domain.names, names, strict=True) if pair[0] != pair[1]]
    states: list[list[str]] = []
    for variable in model.domain:
        texts = [str(s) for s in variable.states] if isinstance(variable, Categorical) else []
        if len(set(texts)) < len(texts):
            raise ModelError(f"variable {variable.name!r} has two states that read the same as text")
        own = _identifiers(texts, "s", longest) if states_too else texts
        changed += [pair for pair in zip(texts, own, strict=True) if pair[0] != pair[1]]
        states.append(own)
    if changed:
        count = "one name" if len(changed) == 1 else f"{len(changed)} names"
        warnings.warn(
            f"{path}: {count} of variables and states had to be written in another form, {changed[0][0]!r} as "
            f"{changed[0][1]!r}; .bif and .npz keep them",
            stacklevel=4,
        )
    return WrittenNames(names, states, model.domain.names)


def _identifiers(names: Sequence[str], prefix: str, longest: int | None) -> list[str]:
    """Return distinct identifiers; names that are already identifiers stay unchanged."""
    plain = [_OTHER.sub("_", name) for name in names]
    wanted = [(name if name[:1].isalpha() else prefix + name)[:longest] for name in plain]
    taken = {new for old, new in zip(names, wanted, strict=True) if old == new}
    found: list[str] = []
    counts: dict[str, int] = {}
    for old, new in zip(names, wanted, strict=True):
        unique = new
        while old != unique and unique in taken:
            counts[new] = counts.get(new, 1) + 1
            end = f"_{counts[new]}"
            unique = (new if longest is None else new[: longest - len(end)]) + end
        taken.add(unique)
        found.append(unique)
    return found


def encoded_label(label: Any, variable: str) -> Any:
    """Return a label as a JSON value; only tuples become lists.

    Raises ModelError for a label that JSON cannot hold.
    """
    value = plain_scalar(label)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_tuple(value):
        return [encoded_label(part, variable) for part in value]
    raise ModelError(
        f"the state {label!r} of variable {variable!r} is a {type(value).__name__}; text, numbers, booleans "
        "and tuples of these can be written"
    )


def decoded_label(value: Any) -> Label:
    """Invert `encoded_label`."""
    return tuple(decoded_label(part) for part in value) if is_list(value) else value
