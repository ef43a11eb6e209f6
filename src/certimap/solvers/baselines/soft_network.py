"""The network of `itself`: maps evidence to soft values of the query variables."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.tensors import torch
from certimap.conversions import condition
from certimap.core.box import Boxes, Points
from certimap.core.control import Limits
from certimap.core.domain import Domain
from certimap.core.query import Query
from certimap.errors import TooLarge

Tensor = Any
SMALL, LARGE = 17, 294  # numbers of variables at which the published network sizes change
MAX_KEPT = 16  # trained networks per model


@contextmanager
def one_thread() -> Generator[None]:
    """Run PyTorch on one thread: batches are small, and sums get the same order on every machine."""
    before = torch().get_num_threads()
    torch().set_num_threads(1)
    try:
        yield
    finally:
        torch().set_num_threads(before)


def published_sizes(n_variables: int) -> tuple[int, ...]:
    """Return the published hidden layer sizes for a model of `n_variables` variables."""
    if n_variables <= SMALL:
        return (64, 32)
    return (256, 128) if n_variables >= LARGE else (128, 64)


def make_network(sizes: Sequence[int], rng: np.random.Generator) -> Any:
    """Return a perceptron with ReLU layers, initialised after He et al. (2015), the last after Glorot and Bengio.

    PyTorch's own random state is neither used nor changed.
    """
    nn: Any = torch().nn
    layers: list[Any] = []
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        is_last = i == len(sizes) - 2
        scale = np.sqrt(2.0 / (n_in + n_out)) if is_last else np.sqrt(2.0 / n_in)
        layer = nn.utils.skip_init(nn.Linear, n_in, n_out)
        with torch().no_grad():
            layer.weight.copy_(torch().as_tensor(rng.normal(0.0, scale, (n_out, n_in))))
            layer.bias.zero_()
        layers += [layer] if is_last else [layer, nn.ReLU()]
    return nn.Sequential(*layers)


class Softening:
    """Converts a network's scores of all states into one distribution per variable."""

    def __init__(self, domain: Domain, device: Any) -> None:
        within = np.arange(int(domain.n_states.max()))
        exists = within < domain.n_states[:, None]
        columns = np.where(exists, domain.offsets[:-1][:, None] + within, domain.total_states)
        self._columns = torch().as_tensor(columns.astype(np.int64), device=device)
        self._places = torch().as_tensor(np.flatnonzero(exists.ravel()), device=device)

    def __call__(self, scores: Tensor) -> Tensor:
        """Convert scores to probabilities, shape (batch, total_states) both."""
        padded = torch().nn.functional.pad(scores, (0, 1), value=-torch().inf)
        soft = padded[:, self._columns].softmax(-1)
        return soft.reshape(len(scores), -1)[:, self._places]


def decode(soft: Tensor, domain: Domain) -> Points:
    """Return the most probable state of each variable, shape (batch, n)."""
    parts = np.split(soft.detach().cpu().numpy(), domain.offsets[1:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], axis=1).astype(domain.point_dtype)


@dataclass(frozen=True, eq=False)
class TrainingCase:
    """A query in the form that the network takes."""

    # p(query, evidence variables) without evidence; None if the model has no such circuit (the network is then
    # trained on the one query)
    joint: CircuitPosterior | None
    # float64, shape (1, n_inputs): a weight per state of the evidence variables, or a single 1 without any
    told: NDArray[np.float64]
    key: Any  # identifies the partition of the model's variables into query, evidence and nuisance

    @classmethod
    def of(cls, posterior: CircuitPosterior, limits: Limits) -> TrainingCase:
        """Derive the case from a posterior's model and query."""
        alone = cls(None, np.ones((1, 1)), None)
        if posterior.origin is None:
            return alone
        model, query = posterior.origin
        domain = query.domain
        weighs = np.logical_or.reduceat(query.log_weights != 0.0, domain.offsets[:-1]) & (domain.n_states > 0)
        asked = {int(v) for v in query.variables}
        told = [v for v in np.flatnonzero(weighs).tolist() if v not in asked]
        if not told:
            return alone
        both = replace(
            query,
            variables=np.concatenate([query.variables, np.array(told, np.int64)]),
            log_weights=np.zeros_like(query.log_weights),
            observed=query.observed.difference(told),
        )
        try:
            joint = condition(model, both, wants=(CircuitPosterior,), limits=limits)
        except TooLarge:
            return alone
        if not isinstance(joint, CircuitPosterior):
            return alone
        logs = [query.log_weights[domain.offsets[v] : domain.offsets[v + 1]] for v in told]
        weights = np.concatenate([np.exp(own - own.max()) for own in logs])[None, :]
        return cls(joint, weights, (query.variables.tobytes(), tuple(told), _fixed(query)))

    def rows(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return evidence to train on, shape (n, n_inputs): draws from the model, or the one query n times."""
        if self.joint is None:
            return np.repeat(self.told, n, axis=0)
        domain = self.joint.domain
        mask = Boxes.of_points(domain, self.joint.sample(n, rng)).mask
        return mask[:, domain.total_states - self.told.shape[1] :].astype(np.float64)


def _fixed(query: Query) -> Any:
    """Return the evidence on real variables, which is fixed in the model used for training."""
    return tuple(sorted(query.values.items())), tuple(sorted(query.intervals.items()))


_KEPT: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def kept(posterior: CircuitPosterior, key: Any) -> Any | None:
    """Return the network trained for the same model, variables and settings, or None."""
    return None if posterior.origin is None else _KEPT.get(posterior.origin[0], {}).get(key)


def keep(posterior: CircuitPosterior, key: Any, network: Any) -> None:
    """Cache a trained network with its model; beyond `MAX_KEPT` the oldest is dropped."""
    if posterior.origin is None:
        return
    own = _KEPT.setdefault(posterior.origin[0], {})
    own[key] = network
    if len(own) > MAX_KEPT:
        del own[next(iter(own))]
