"""Models that came in by a reader: files in the orders and numbers of other programs, objects of scikit-learn."""

from __future__ import annotations

import math
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import BernoulliNB, CategoricalNB

from certimap import from_object, io
from certimap.core.domain import Categorical, Domain
from certimap_lab.hostile import circuits, networks
from certimap_lab.hostile.case import HostileCase, choose_evidence, choose_query
from certimap_lab.hostile.exact import from_logs
from certimap_lab.hostile.numbers import Floats
from certimap_lab.hostile.oracles import factor_truth

CIRCUITS = (circuits.leaf, circuits.sizes, circuits.mixture, circuits.shared, circuits.structured)


def numbered(rng: np.random.Generator) -> HostileCase:
    """A circuit from a `.jpc` file whose variables are called by rising numbers with gaps."""
    case = CIRCUITS[int(rng.integers(len(CIRCUITS)))](rng)
    numbers = np.cumsum(rng.integers(1, 6, len(case.model.domain))).tolist()
    called = dict(zip(case.model.domain.names, map(str, numbers), strict=True))
    own = [v for v in case.model.domain if isinstance(v, Categorical)]
    renamed = Domain(Categorical(called[v.name], v.states) for v in own)
    with tempfile.TemporaryDirectory() as folder:
        io.write(replace(case.model, domain=renamed), Path(folder) / "model.jpc")
        again = io.read(Path(folder) / "model.jpc")
    assert again.domain.names == renamed.names
    if again.domain.n_states.tolist() != renamed.n_states.tolist():
        return case  # the file knows no state beyond the last that a leaf names
    evidence = {called[name]: value for name, value in (case.evidence or {}).items()}
    return replace(case, model=again, query=[called[name] for name in case.query or []], evidence=evidence)


def reordered(rng: np.random.Generator) -> HostileCase:
    """A Bayesian network from a UAI file as pyagrum writes it: the child fastest, then its first parent."""
    case = networks.bayesian(rng)
    sizes: list[int] = case.model.domain.n_states.tolist()
    lines = ["BAYES", str(len(sizes)), f"{' '.join(map(str, sizes))} ", str(len(sizes))]
    lines += [f"{' '.join(map(str, (len(f.scope), *f.scope)))}   # v{f.scope[-1]}" for f in case.model.factors]
    for factor in case.model.factors:
        *parents, child = range(len(factor.scope))
        entries = factor.table.transpose(*reversed(parents), child).ravel().tolist()
        lines += ["", str(len(entries)), "  " + " ".join(map(repr, entries))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # which says how it is read
        path = Path(folder) / "model.uai"
        path.write_text("\n".join(lines) + "\n")
        return replace(case, model=io.read(path))


def classifier(rng: np.random.Generator) -> HostileCase:
    """A naive Bayes classifier of scikit-learn, with the smoothing and the priors that it was fitted with."""
    n, n_classes = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    labels = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=20)])
    settings: dict[str, Any] = {"alpha": float(rng.choice([1e-3, 0.5, 1.0, 50.0]))}
    if rng.random() < 0.5:
        settings["class_prior"] = rng.dirichlet(np.full(n_classes, 0.3)) * (1 - 1e-3) + 1e-3 / n_classes
    if rng.random() < 0.5:
        fitted = BernoulliNB(binarize=None, **settings).fit(rng.integers(2, size=(len(labels), n)), labels)
        ones: Floats = fitted.feature_log_prob_
        tables = [np.stack([np.log1p(-np.exp(ones[:, j])), ones[:, j]], axis=1) for j in range(n)]
    else:
        sizes = rng.integers(1, 4, n)
        fitted = CategoricalNB(min_categories=sizes, **settings).fit(
            rng.integers(sizes, size=(len(labels), n)), labels
        )
        tables = list(fitted.feature_log_prob_)
    model = from_object(fitted)
    factors = [((n, j), from_logs(table)) for j, table in enumerate(tables)]
    factors.append(((n,), from_logs(fitted.class_log_prior_)))
    query = choose_query(rng, model.domain)
    evidence = choose_evidence(rng, model.domain, query)
    assert math.isclose(float(np.exp(fitted.class_log_prior_).sum()), 1.0, rel_tol=1e-9)
    return HostileCase(model, query, evidence, factor_truth(model.domain, factors, query, evidence))
