"""Writing Bayesian networks as BIF."""

from __future__ import annotations

import itertools
import re

from certimap.core.domain import Categorical
from certimap.errors import ModelError
from certimap.io.files import AnyPath, write_text
from certimap.io.numbers import written
from certimap.networks.bayesian import BayesianNetwork

_PLAIN = re.compile(r'[^\s"(){}\[\],;|/]+')


def write_bif(model: BayesianNetwork, path: AnyPath) -> None:
    """Write a Bayesian network; numbers read back exactly, state labels read back as text.

    Raises ModelError for a name that BIF cannot hold, or two states of a variable that are equal as text.
    """
    names = [_written(n, n) for n in model.domain.names]
    states: list[list[str]] = []
    for variable in model.domain:
        labels = variable.states if isinstance(variable, Categorical) else ()
        texts = [_written(str(s), variable.name) for s in labels]
        if len(set(texts)) < len(texts):
            raise ModelError(f"variable {variable.name!r} has two states that read the same in BIF")
        states.append(texts)
    lines = ["network unknown {", "}"]
    for name, texts in zip(names, states, strict=True):
        lines += [f"variable {name} {{", f"  type discrete [ {len(texts)} ] {{ {', '.join(texts)} }};", "}"]
    for factor in model.factors:
        *parents, child = factor.scope
        if not parents:
            lines += [f"probability ( {names[child]} ) {{", f"  table {', '.join(written(factor))};", "}"]
            continue
        lines.append(f"probability ( {names[child]} | {', '.join(names[p] for p in parents)} ) {{")
        texts, size = written(factor), factor.shape[-1]
        for row, index in enumerate(itertools.product(*(range(k) for k in factor.shape[:-1]))):
            given = ", ".join(states[p][s] for p, s in zip(parents, index, strict=True))
            lines.append(f"  ({given}) {', '.join(texts[row * size : (row + 1) * size])};")
        lines.append("}")
    write_text(path, "\n".join(lines) + "\n")


def _written(text: str, variable: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    if '"' in text:
        raise ModelError(
            f"{text!r} of variable {variable!r} cannot be written as BIF; expected text without double quotes"
        )
    return f'"{text}"'
