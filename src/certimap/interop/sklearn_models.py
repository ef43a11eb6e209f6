"""Mixtures, naive Bayes classifiers and quadratic discriminants of scikit-learn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.logs import log_of, log_sum
from certimap.core.named import needed
from certimap.densities.gaussian_mixture import LOG_2PI, GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import ModelError
from certimap.interop import reading
from certimap.interop.reading import Reading, Wishes, fitted, labels_of, named, numbers
from certimap.interop.sequences import gaussian_product
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor

CLASS = "class"
_KINDS = (
    "GaussianMixture", "BayesianGaussianMixture", "CategoricalNB", "BernoulliNB", "GaussianNB", "MultinomialNB",
    "QuadraticDiscriminantAnalysis",
)  # fmt: skip
_ACCEPTED = f"expected {', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
_REASONS = {"ComplementNB": "its scores are of no distribution over rows; expected MultinomialNB"}


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a fitted model: a mixture's density, components summed out; a classifier's p(features, class)."""
    kind = next((name for name in reading.classes_of(x) if name in _KINDS), type(x).__name__)
    if kind in ("GaussianMixture", "BayesianGaussianMixture"):
        is_whole = kind == "GaussianMixture" and hasattr(x, "precisions_cholesky_")
        return Reading(
            _mixture(x, wishes), lambda rows: _asked((x if is_whole else _plain(x)).score_samples, rows)
        )
    if kind == "MultinomialNB":
        return _multinomial(x, wishes)
    if kind == "QuadraticDiscriminantAnalysis":
        return _discriminant(x, wishes)
    readers = {"CategoricalNB": _categorical, "BernoulliNB": _bernoulli, "GaussianNB": _gaussian}
    if kind not in readers:
        raise reading.refuse(x, _REASONS.get(kind, _ACCEPTED))
    return Reading(readers[kind](x, wishes), lambda rows: _joint(x, rows))


def _plain(x: Any) -> Any:
    """Return scikit-learn's mixture with the weights, means and covariances of a Bayesian or handmade one.

    A Bayesian mixture scores a bound on its evidence, which is no density; a handmade one lacks what fit adds.
    """
    module: Any = import_module("sklearn.mixture._gaussian_mixture")
    mixture = module.GaussianMixture(len(x.weights_), covariance_type=x.covariance_type)
    for name in ("weights_", "means_", "covariances_"):
        setattr(mixture, name, numbers(getattr(x, name)))
    inverse = reading.attribute(module, "_compute_precision_cholesky")
    mixture.precisions_cholesky_ = inverse(mixture.covariances_, x.covariance_type)
    return mixture


def _joint(x: Any, rows: Floats) -> Floats:
    """Return the classifier's own ln p(features, class) of rows, whose last column is the class's position."""
    found = _asked(x.predict_joint_log_proba, rows[:, :-1])
    return found[np.arange(len(rows)), rows[:, -1].astype(np.int64)]


def to_sklearn(model: Any) -> Any:
    """Return a fitted `GaussianMixture` of scikit-learn; names other than numbers are its feature names.

    `model`: a `GaussianMixture`. Raises ModelError for another, and MissingDependency without scikit-learn.
    """
    if not isinstance(model, GaussianMixture):
        raise ModelError(f"a {type(model).__name__} is no GaussianMixture, which to_sklearn takes")
    needed("sklearn.mixture", "to_sklearn needs scikit-learn: pip install scikit-learn")
    arrays = {"weights_": np.exp(model.log_weights), "means_": model.means, "covariances_": model.covariances}
    made = _plain(SimpleNamespace(**arrays, covariance_type="full"))
    made.n_features_in_, made.converged_ = len(model.domain), True
    if not all(name.isdecimal() for name in model.domain.names):
        made.feature_names_in_ = np.array(model.domain.names, object)
    return made


def _asked(ask: Callable[[Floats], Any], rows: Floats) -> Floats:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows here have no names
        return numbers(ask(rows))


def _names(x: Any, n_features: int, wishes: Wishes, *, last: Sequence[str] = ()) -> list[str]:
    """Return the names of the features (the user's, the training frame's, or numbers), then `last`."""
    own = [str(name) for name in getattr(x, "feature_names_in_", range(n_features))]
    if wishes.names is not None and len(wishes.names) == n_features:
        return named(Wishes(names=[*wishes.names, *last]), [*own, *last], x)
    return named(wishes, [*own, *last], x)


def _mixture(x: Any, wishes: Wishes) -> Circuit | GaussianMixture:
    weights, means = numbers(fitted(x, "weights_")), numbers(fitted(x, "means_"))
    variances, kind = numbers(fitted(x, "covariances_")), x.covariance_type
    n = means.shape[1]
    used = weights > 0.0
    weights, means = weights[used], means[used]
    variances = variances if kind == "tied" else variances[used]
    if n == 1:
        variances = np.broadcast_to(variances.reshape(-1, 1), means.shape)
    elif kind == "spherical":
        variances = np.broadcast_to(variances[:, None], means.shape)
    elif kind != "diag":  # "full", or "tied" for all components together
        # If fitted in single precision, they are symmetric only up to its rounding.
        lopsided = np.abs(variances - variances.swapaxes(-1, -2)).max(initial=0.0)
        if lopsided <= 1e-4 * np.abs(variances).max(initial=0.0):
            variances = 0.5 * (variances + variances.swapaxes(-1, -2))
        variances = np.broadcast_to(variances, (len(weights), n, n))
        return GaussianMixture(weights, means, variances, _names(x, n, wishes))
    builder = CircuitBuilder(Domain(Real(name) for name in _names(x, n, wishes)))
    parts = [gaussian_product(builder, range(n), means[k], np.sqrt(variances[k])) for k in range(len(weights))]
    builder.sum(parts, log_weights=log_of(weights / weights.sum()).tolist())
    return builder.build(normalised=False)


def _network(x: Any, wishes: Wishes, log_tables: list[Floats]) -> BayesianNetwork:
    """Build a class, the last variable, and features given it; tables in logs, shape (classes, states)."""
    n = len(log_tables)
    states = [*(tuple(range(table.shape[1])) for table in log_tables), labels_of(fitted(x, "classes_"))]
    factors = [Factor.from_log((n, j), table) for j, table in enumerate(log_tables)]
    factors.append(Factor.from_log((n,), numbers(fitted(x, "class_log_prior_"))))
    return BayesianNetwork(Domain(map(Categorical, _names(x, n, wishes, last=[CLASS]), states)), factors)


def _categorical(x: Any, wishes: Wishes) -> BayesianNetwork:
    return _network(x, wishes, [numbers(table) for table in fitted(x, "feature_log_prob_")])


def _bernoulli(x: Any, wishes: Wishes) -> BayesianNetwork:
    """Read features with states 0 and 1; the threshold `binarize` must separate the two."""
    if x.binarize is not None and not 0.0 <= x.binarize < 1.0:
        text = f"this {reading.kind_of(x)} cuts values at binarize={x.binarize}, where 0 and 1 are the same to it"
        raise ModelError(f"{text}; expected binarize=None, or a number in [0, 1)")
    log_one = numbers(fitted(x, "feature_log_prob_"))
    tables = np.stack([np.log1p(-np.exp(log_one)), log_one], axis=2)
    return _network(x, wishes, [tables[:, j] for j in range(log_one.shape[1])])


def _gaussian(x: Any, wishes: Wishes) -> Circuit:
    means, variances = numbers(fitted(x, "theta_")), numbers(fitted(x, "var_"))
    prior, n = numbers(fitted(x, "class_prior_")), means.shape[1]

    def leaves(builder: CircuitBuilder, k: int) -> int:
        return gaussian_product(builder, range(n), means[k], np.sqrt(variances[k]))

    return _of_classes(x, wishes, log_of(prior / prior.sum()), n, leaves)


def _multinomial(x: Any, wishes: Wishes) -> Reading:
    """Read counts as Poisson, with the mean total of the training rows: the classes' posterior is the same."""
    log_shares, log_prior = numbers(fitted(x, "feature_log_prob_")), numbers(fitted(x, "class_log_prior_"))
    n, total = log_shares.shape[1], float(numbers(x.feature_count_).sum() / numbers(x.class_count_).sum())
    if not (total > 0.0 and np.all(np.isfinite(log_shares))):
        raise reading.refuse(x, "a feature has probability 0; expected a positive alpha, and rows with counts")

    def leaves(builder: CircuitBuilder, k: int) -> int:
        counts = [builder.real("poisson", j, total * math.exp(log_shares[k, j])) for j in range(n)]
        return builder.product(counts) if n > 1 else counts[0]

    def theirs(rows: Floats) -> Floats:
        counts, log_gamma = rows[:, :-1], np.vectorize(math.lgamma, otypes=[np.float64])
        return _joint(x, rows) + counts.sum(axis=1) * math.log(total) - total - log_gamma(counts + 1.0).sum(axis=1)

    return Reading(_of_classes(x, wishes, log_prior, n, leaves), theirs)


def _of_classes(
    x: Any, wishes: Wishes, log_prior: Floats, n: int, leaves: Callable[[CircuitBuilder, int], int]
) -> Circuit:
    """Build real features given a class, the last variable; `leaves` adds the features of class k."""
    names, classes = _names(x, n, wishes, last=[CLASS]), labels_of(fitted(x, "classes_"))
    builder = CircuitBuilder(Domain([*(Real(name) for name in names[:-1]), Categorical(names[-1], classes)]))
    parts: list[int] = []
    for k in range(len(classes)):
        here = builder.categorical(n, log_weights=[0.0 if c == k else -math.inf for c in range(len(classes))])
        parts.append(builder.product([here, leaves(builder, k)]))
    builder.sum(parts, log_weights=log_prior.tolist())
    return builder.build(normalised=False)


def _discriminant(x: Any, wishes: Wishes) -> Reading:
    """Read a class, and features with a full covariance in each: each linear in those before it."""
    means, prior = numbers(fitted(x, "means_")), numbers(fitted(x, "priors_"))
    spreads = zip(fitted(x, "rotations_"), fitted(x, "scalings_"), strict=True)
    covariances = np.array([(numbers(r) * numbers(s)) @ numbers(r).T for r, s in spreads])
    covariances = 0.5 * (covariances + covariances.swapaxes(1, 2))
    names = _names(x, means.shape[1], wishes, last=[CLASS])
    mixture = GaussianMixture(prior, means, covariances, names[:-1])
    nodes: list[LinearGaussian] = []
    for j, name in enumerate(names[:-1]):
        own = mixture.factors[:, j, j]
        slopes = -mixture.factors[:, j, :j] / own[:, None]
        starts = means[:, j] - np.einsum("kj,kj->k", slopes, means[:, :j])
        nodes.append(LinearGaussian(name, [*names[:j], names[-1]], starts, slopes, 1.0 / own))
    known = {names[-1]: labels_of(fitted(x, "classes_"))}
    classes = BayesianNetwork.from_cpts(known, {}, {names[-1]: (prior / prior.sum()).tolist()})

    def theirs(rows: Floats) -> Floats:
        found = numbers(x._decision_function(rows))
        return log_sum(found.reshape(len(rows), -1), 1) - 0.5 * rows.shape[1] * LOG_2PI

    return Reading(LinearGaussianNetwork(nodes, discrete=classes), theirs, compared=mixture)
