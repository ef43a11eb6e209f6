"""Hidden Markov models of hmmlearn and pomegranate, conditional random fields, and pomegranate's networks.

With a sequence of observations, a model becomes a chain of log scores, and its library computes the scores of each
step; without one, the observations of a fixed number of steps are variables too.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import check_whole
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Label, Real, Variable
from certimap.core.logs import log_of
from certimap.core.model import Model
from certimap.errors import ModelError
from certimap.interop import reading
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, kind_of, numbers
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.chains import linear_chain
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork

MOST_STATES = 512  # up to this many hidden states, sequences of two steps are compared; beyond, of one step
_ACCEPTED = "expected CategoricalHMM, GaussianHMM, GMMHMM, MultinomialHMM, PoissonHMM or a variational one"
_HMMS = {"DenseHMM", "SparseHMM"}
Emission = Callable[[CircuitBuilder, Sequence[int], int], int]  # (builder, variables, state): a node


class Chain(NamedTuple):
    """The hidden states of a hidden Markov model."""

    start: Floats  # weights of the first state, shape (K,)
    move: Floats  # of transitions, shape (K, K)
    end: Floats | None = None  # of the last state, shape (K,)


def distributions(rows: Floats, what: str, slack: float = 1e-4) -> Floats:
    """Rescale rows (last axis) to sum 1 in double precision; their sums may differ from 1 by `slack`."""
    totals = rows.sum(axis=-1, keepdims=True)
    if not (np.all(np.isfinite(rows)) and np.all(rows >= 0.0) and np.all(np.abs(totals - 1.0) <= slack)):
        text = f"{what} holds a row that is no distribution"
        raise ModelError(f"{text}; expected rows of numbers that are not negative and add to 1")
    return rows / totals


def read_scores(
    unary: Callable[[Any], Floats], pairwise: Floats, observations: Any, theirs: Callable[[Any, Floats], Any], *,
    labels: Sequence[Label] | None = None, summed: bool = True,
) -> Reading:  # fmt: skip
    """Return the chain of a sequence of observations, with one of its first steps for comparison.

    `unary`: returns the log scores of observations. `theirs`: the library's log value of observations if `summed`,
    else the log probabilities of their states, shape (n, steps).
    """
    first = observations[~np.isnan(observations).any(axis=1)] if summed else observations
    first = first[: 2 if len(pairwise) <= MOST_STATES else 1]
    if not len(first):
        raise ModelError("no complete observation is given; expected one at least")
    model = linear_chain(unary(observations), pairwise, states=labels)
    compared = linear_chain(unary(first), pairwise)
    log_total = 0.0 if summed else compared.log_partition

    def values(points: Floats) -> Any:
        return theirs(first, points) + np.full(len(points), log_total)

    return Reading(model, values, compared, hidden=range(len(first) if summed else 0))


def observed(x: Any, wishes: Wishes) -> Floats | None:
    """Return a sequence of observations, shape (steps, features), if one is given."""
    if wishes.names is not None:
        raise ModelError(f"a {kind_of(x)} names its variables state0, symbol0, ...; leave names out")
    if wishes.observations is None:
        return None
    rows = numbers(wishes.observations)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.size == 0:
        raise ModelError(f"observations has the shape {rows.shape}; expected (steps, features) for a {kind_of(x)}")
    return rows


def steps_of(x: Any, wishes: Wishes) -> int:
    """Return the given length; raises ModelError without one."""
    observed(x, wishes)
    if wishes.steps is None:
        text = f"a {kind_of(x)} stands for sequences of any length"
        raise ModelError(f"{text}; certimap.from_object(model, steps=...) reads it for one length")
    return check_whole("steps", wishes.steps, "a whole number from 1", ModelError, low=1)


def _hidden(steps: int, n_states: int) -> list[Variable]:
    return [Categorical(f"state{t}", tuple(range(n_states))) for t in range(steps)]


def _symbols(steps: int, n_features: int) -> list[str]:
    """Return the names of the emissions, step by step: symbol3, or symbol3_0, symbol3_1, ... for several."""
    ends = [""] if n_features == 1 else [f"_{j}" for j in range(n_features)]
    return [f"symbol{t}{end}" for t in range(steps) for end in ends]


def read_sequence(
    build: Callable[[int], Model], n_states: int, steps: int, theirs: Callable[[Floats], Any]
) -> Reading:
    """Return a sequence model, with a shorter one for comparison with the library.

    `build`: makes the model for a number of steps; hidden states come first. `theirs`: returns the log values of
    sequences, shape (n, steps, n_features), hidden states summed out.
    """
    short = min(steps, 2 if n_states <= MOST_STATES else 1)
    compared = build(short)

    def values(points: Floats) -> Any:
        return theirs(points[:, short:].reshape(len(points), short, -1))

    return Reading(compared if short == steps else build(steps), values, compared, hidden=range(short))


def discrete_chain(chain: Chain, tables: Sequence[Floats], steps: int) -> BayesianNetwork | MarkovNetwork:
    """Build a network from one table of emissions per feature, shape (K, M) each.

    With weights of the last state, it is a Markov network whose total is the weight of all sequences.
    """
    n, variables = len(tables), _hidden(steps, len(chain.start))
    for j, name in enumerate(_symbols(steps, n)):
        variables.append(Categorical(name, tuple(range(tables[j % n].shape[1]))))
    factors = [Factor((0,), chain.start), *(Factor((t - 1, t), chain.move) for t in range(1, steps))]
    factors += [Factor((t, steps + t * n + j), tables[j]) for t in range(steps) for j in range(n)]
    if chain.end is not None:
        return MarkovNetwork(Domain(variables), [*factors, Factor((steps - 1,), chain.end)])
    return BayesianNetwork(Domain(variables), factors)


def real_chain(chain: Chain, n_features: int, emission: Emission, steps: int) -> Circuit:
    """Build a circuit for emissions of real features, with the hidden states as variables: steps * K^2 edges."""
    k = len(chain.start)
    builder = CircuitBuilder(Domain([*_hidden(steps, k), *map(Real, _symbols(steps, n_features))]))
    log_start, log_move = log_of(chain.start), log_of(chain.move)
    log_end = np.zeros(k) if chain.end is None else log_of(chain.end)
    below: list[int] = []
    for t in reversed(range(steps)):
        own: list[int] = []
        for state in range(k):
            weight = log_end[state] if t == steps - 1 else 0.0
            here = builder.categorical(t, log_weights=[weight if s == state else -math.inf for s in range(k)])
            first = steps + t * n_features
            parts = [here, emission(builder, range(first, first + n_features), state)]
            if below:
                parts.append(builder.sum(below, log_weights=log_move[state].tolist()))
            own.append(builder.product(parts))
        below = own
    builder.sum(below, log_weights=log_start.tolist())
    return builder.build(normalised=False)


def gaussian_product(builder: CircuitBuilder, variables: Sequence[int], means: Floats, sds: Floats) -> int:
    """Add a product of Gaussians, one per variable."""
    leaves = list(map(builder.gaussian, variables, means.tolist(), sds.tolist()))
    return leaves[0] if len(leaves) == 1 else builder.product(leaves)


def read_hmmlearn(x: Any, wishes: Wishes) -> Reading:
    """Read a hidden Markov model for one sequence, or for sequences of the given length.

    A variational one has the means of its posterior, by which hmmlearn scores too.
    """
    kind = next((name.removeprefix("Variational") for name in classes_of(x) if name.endswith("HMM")), "")
    if kind not in ("CategoricalHMM", "GaussianHMM", "GMMHMM", "MultinomialHMM", "PoissonHMM"):
        raise reading.refuse(x, _ACCEPTED)
    chain = Chain(_rows(x, "startprob_"), _rows(x, "transmat_"))
    counts = kind not in ("GaussianHMM", "GMMHMM")

    def given(rows: Floats) -> Any:
        if counts and not np.all((rows >= 0.0) & (rows == np.floor(rows))):  # for hmmlearn, -1 is the last symbol
            raise ModelError(f"observations of a {kind_of(x)} are whole numbers from 0; another number was given")
        return rows.astype(np.int64) if counts else rows

    if (rows := observed(x, wishes)) is not None:

        def unary(rows: Floats) -> Floats:
            is_seen = ~np.isnan(rows).all(axis=1)  # a row of NaN is a missing observation
            scores = np.zeros((len(rows), len(chain.start)))
            scores[is_seen] = attribute(x, "_compute_log_likelihood")(given(rows[is_seen]))
            scores[0] += log_of(chain.start)
            return scores

        return read_scores(unary, log_of(chain.move), rows, lambda first, _: x.score(given(first)))
    steps, n_states = steps_of(x, wishes), len(chain.start)

    def theirs(sequences: Floats) -> list[float]:
        return [x.score(given(sequence)) for sequence in sequences]

    if kind == "CategoricalHMM":
        emission = _rows(x, "emissionprob_")
        return read_sequence(lambda t: discrete_chain(chain, [emission], t), n_states, steps, theirs)
    if counts or x.covariance_type not in ("diag", "spherical"):
        what = "counts" if counts else f"covariance_type={x.covariance_type!r}"
        raise ModelError(f"a {kind_of(x)} with {what} is read for one sequence alone; expected observations=...")
    means = _fitted(x, "means_")
    # The property covars_ fails for fitted spherical covariances.
    emit = _mixed(x, means) if kind == "GMMHMM" else _gaussian(means, _fitted(x, "_covars_"))
    return read_sequence(lambda t: real_chain(chain, means.shape[-1], emit, t), n_states, steps, theirs)


def _gaussian(means: Floats, variances: Floats) -> Emission:
    """Return Gaussian emissions, means of shape (K, features), variances of shape (K,), (K, 1) or the same."""
    sds = np.sqrt(np.broadcast_to(variances[:, None] if variances.ndim == 1 else variances, means.shape))
    return lambda builder, variables, state: gaussian_product(builder, variables, means[state], sds[state])


def _mixed(x: Any, means: Floats) -> Emission:
    """Read emissions that are mixtures of Gaussians, means of shape (K, components, features)."""
    weights, variances = _rows(x, "weights_"), _fitted(x, "covars_")
    sds = np.sqrt(np.broadcast_to(variances if variances.ndim == 3 else variances[:, :, None], means.shape))

    def emission(builder: CircuitBuilder, variables: Any, state: int) -> int:
        parts = [
            gaussian_product(builder, variables, *pair) for pair in zip(means[state], sds[state], strict=True)
        ]
        return parts[0] if len(parts) == 1 else builder.sum(parts, log_weights=log_of(weights[state]).tolist())

    return emission


def _fitted(x: Any, name: str) -> Floats:
    return numbers(reading.fitted(x, name))


def _rows(x: Any, name: str) -> Floats:
    return distributions(_fitted(x, name), name)


def read_pomegranate(x: Any, wishes: Wishes) -> Reading:
    """Read a network, or a hidden Markov model: the probability of a sequence and of its end there."""
    kinds = set(classes_of(x))
    if "BayesianNetwork" in kinds:
        return _network(x, wishes)
    if kinds & _HMMS:
        return _sequence(x, wishes)
    if "FactorGraph" in kinds:
        return _factor_graph(x, wishes)
    raise reading.refuse(x, "expected BayesianNetwork, FactorGraph, DenseHMM or SparseHMM")


def _network(x: Any, wishes: Wishes) -> Reading:
    parts, parents = _parts(x), attribute(x, "_parents")
    tables = [_table(part, f"the distribution of variable {i}") for i, part in enumerate(parts)]
    names = reading.named(wishes, [str(i) for i in range(len(parts))], x)
    domain = Domain(map(Categorical, names, (tuple(range(table.shape[-1])) for table in tables)))
    factors = [Factor((*parents[i], i), table) for i, table in enumerate(tables)]
    return Reading(BayesianNetwork(domain, factors), partial(_log_probability, x))


def _factor_graph(x: Any, wishes: Wishes) -> Reading:
    """Read a factor graph: its value is the product of factors and marginals."""
    marginals = [numbers(_present(m, "probs", "a marginal"))[0] for m in attribute(x, "marginals")]
    names = reading.named(wishes, [str(i) for i in range(len(marginals))], x)
    domain = Domain(map(Categorical, names, (tuple(range(len(m))) for m in marginals)))
    factors = [Factor((i,), table) for i, table in enumerate(marginals)]
    for scope, part in zip(attribute(x, "_factor_edges"), attribute(x, "factors"), strict=True):
        table = numbers(_present(part, "probs", "a factor"))
        factors.append(Factor(scope, table[0] if type(part).__name__ == "Categorical" else table))
    return Reading(MarkovNetwork(domain, factors), partial(_log_probability, x))


def _parts(x: Any) -> list[Any]:
    parts = list(attribute(x, "distributions") or ())
    if not parts:
        raise ModelError(f"this {kind_of(x)} has no distributions; add or fit them first")
    return parts


def _log_probability(x: Any, rows: Floats, kind: Any = np.int64) -> Floats:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        return numbers(x.log_probability(torch.as_tensor(rows.astype(kind))))


def _table(part: Any, what: str) -> Floats:
    """Return the table of a categorical or conditional categorical distribution of one variable."""
    kind = type(part).__name__
    if kind == "Categorical":
        return distributions(numbers(_present(part, "probs", what)), what)[0]
    if kind == "ConditionalCategorical":
        return distributions(numbers(_present(part, "probs", what)[0]), what)
    raise ModelError(f"{what} is a {kind_of(part)}; expected Categorical or ConditionalCategorical")


def _present(part: Any, name: str, what: str) -> Any:
    value = attribute(part, name)
    if value is None:
        raise ModelError(f"{what} has no {name}; fit the model first")
    return value


def _sequence(x: Any, wishes: Wishes) -> Reading:
    parts, steps = _parts(x), steps_of(x, wishes)
    x = _unpacked(x)
    k = len(parts)
    chain = Chain(_weights(x, "starts", k), _moves(x, k), _weights(x, "ends", k))
    kinds = {type(part).__name__ for part in parts}
    if kinds == {"Categorical"}:
        tables = _emissions(parts)
        return read_sequence(lambda t: discrete_chain(chain, tables, t), k, steps, partial(_log_probability, x))
    if kinds == {"Normal"} and all(attribute(p, "covariance_type") in ("diag", "sphere") for p in parts):
        means = np.array([numbers(_present(p, "means", "an emission")) for p in parts])
        variances = np.array([numbers(_present(p, "covs", "an emission")) for p in parts])
        emission = _gaussian(means, variances.reshape(k, -1))
        theirs = partial(_log_probability, x, kind=np.float32)
        return read_sequence(lambda t: real_chain(chain, means.shape[1], emission, t), k, steps, theirs)
    text = f"a {kind_of(x)} has emissions of the kinds {', '.join(sorted(kinds))}"
    raise ModelError(f"{text}; expected all Categorical, or all Normal with diagonal or spherical covariances")


def _unpacked(x: Any) -> Any:
    """Return the model, or a copy with edges as pomegranate makes them: of a list, or equal ones of none."""
    is_sparse = "SparseHMM" in classes_of(x)
    if hasattr(x, "_edge_log_probs") if is_sparse else attribute(x, "edges") is not None:
        return x
    if is_sparse and not attribute(x, "edges"):
        raise ModelError(f"this {kind_of(x)} has no edges; add or fit them first")
    copied = copy.deepcopy(x)
    attribute(copied, "_initialize")()
    return copied


def _emissions(parts: list[Any]) -> list[Floats]:
    """Return one table per feature, shape (states, symbols)."""
    all_probs = [numbers(_present(p, "probs", "an emission")) for p in parts]
    shapes = {probs.shape for probs in all_probs}
    if len(shapes) != 1:
        raise ModelError(f"emissions have tables of the shapes {sorted(shapes)}; expected one shape")
    rows = distributions(np.array(all_probs), "an emission")
    return [rows[:, j] for j in range(rows.shape[1])]


def _weights(x: Any, name: str, k: int) -> Floats:
    """Return start or end weights from their logs; uniform by default."""
    value = attribute(x, name)
    return np.full(k, 1.0 / k) if value is None else np.exp(numbers(value))


def _moves(x: Any, k: int) -> Floats:
    edges = numbers(attribute(x, "edges"))
    if "SparseHMM" not in classes_of(x):
        return np.exp(edges)
    moves = np.zeros((k, k))
    sources, targets = (numbers(attribute(x, f"_edge_idx_{e}")).astype(np.int64) for e in ("starts", "ends"))
    np.add.at(moves, (sources, targets), np.exp(numbers(attribute(x, "_edge_log_probs"))))
    return moves


def read_crf(x: Any, wishes: Wishes) -> Reading:
    """Read a conditional random field of sklearn-crfsuite or pytorch-crf, for one sequence."""
    if wishes.observations is None or wishes.names is not None or "CRF" not in classes_of(x):
        raise reading.refuse(x, "expected a CRF with observations=... of one sequence, and without names")
    return (_torch_crf if reading.library_of(x) == "torchcrf" else _crfsuite)(x, wishes)


def _crfsuite(x: Any, wishes: Wishes) -> Reading:
    labels = tuple(reading.fitted(x, "classes_"))
    at, moves = {label: i for i, label in enumerate(labels)}, np.zeros((len(labels), len(labels)))
    for (before, after), weight in attribute(x, "transition_features_").items():
        moves[at[before], at[after]] = weight
    by_feature: dict[str, Floats] = {}
    for (feature, label), weight in attribute(x, "state_features_").items():
        by_feature.setdefault(feature, np.zeros(len(labels)))[at[label]] = weight
    sequence_of = attribute(sys.modules["pycrfsuite"], "ItemSequence")

    def unary(items: Any) -> Floats:
        scores = np.zeros((len(items), len(labels)))
        for row, item in zip(scores, sequence_of(items).items(), strict=True):
            row += sum(value * by_feature.get(feature, 0.0) for feature, value in item.items())
        return scores

    def theirs(items: Any, points: Floats) -> Floats:
        attribute(x, "tagger_.set")(sequence_of(items))
        probability = attribute(x, "tagger_.probability")
        return log_of(np.array([probability([labels[int(s)] for s in point]) for point in points]))

    return read_scores(unary, moves, list(wishes.observations), theirs, labels=labels, summed=False)


def _torch_crf(x: Any, wishes: Wishes) -> Reading:
    start, end, moves = (numbers(attribute(x, f"{name}transitions")) for name in ("start_", "end_", ""))

    def unary(rows: Floats) -> Floats:
        ends = np.zeros((len(rows), len(start)))
        ends[0] += start
        ends[-1] += end
        return rows + ends

    def theirs(rows: Floats, points: Floats) -> Floats:
        torch: Any = sys.modules["torch"]
        axis = 0 if attribute(x, "batch_first") else 1
        own = torch.as_tensor(np.stack([rows] * len(points), axis=axis), dtype=torch.float32)
        tags = torch.as_tensor(points if axis == 0 else points.T, dtype=torch.int64)
        with torch.no_grad():
            return numbers(x(own, tags, reduction="none"))

    return read_scores(unary, moves, observed(x, wishes), theirs, summed=False)
