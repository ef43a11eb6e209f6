"""The base class of all models: conditioning, writing files, and a cache of what one query leaves for the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from os import PathLike
from threading import Lock
from typing import TYPE_CHECKING, Any

from certimap.core.cached import cached_property, guard
from certimap.core.control import Limits
from certimap.core.domain import Domain, Label
from certimap.errors import QueryError

if TYPE_CHECKING:
    from certimap.core.columns import ColumnNote
    from certimap.core.posterior import Posterior
    from certimap.core.query import Query

MOST_BYTES = 2**25  # cache size per model
MOST_THINGS = 1024
SHARE_OF_ONE = 8  # a value above MOST_BYTES / SHARE_OF_ONE is not cached


class Kept:
    """A thread-safe cache that evicts the least recently used entry."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._things: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()
        self._n_bytes = 0.0

    def get(self, key: Hashable) -> Any:
        """Return the cached value of a key, or None."""
        with self._lock:
            if key in self._things:
                self._things.move_to_end(key)
            return self._things.get(key, (None, 0.0))[0]

    def put(self, key: Hashable, thing: Any, n_bytes: float) -> None:
        """Cache a value of about `n_bytes` bytes."""
        if SHARE_OF_ONE * n_bytes > MOST_BYTES:
            return
        with self._lock:
            self._n_bytes += n_bytes - self._things.pop(key, (None, 0.0))[1]
            self._things[key] = (thing, n_bytes)
            while self._n_bytes > MOST_BYTES or len(self._things) > MOST_THINGS:
                self._n_bytes -= self._things.popitem(last=False)[1][1]


def conversions():
    """Return `certimap.conversions`, which conditions and converts models; imported late to avoid a cycle."""
    from certimap import conversions as room

    return room


class Model:
    """A distribution, or an unnormalised product, over the variables of a domain.

    Circuits, networks and learned models derive from it. A model of your own derives from it too, and either
    overrides `condition` or registers its type (`certimap.conversions.register`).

    - `domain`: the variables.
    - `hidden`: names of helper variables, which a query for all variables leaves out (see `NoisyMax`).
    - `source_columns`: what became of the columns of the table that the model was learned from; printed as a
      table. Kept in .npz.
    - `views`: functions that return the model as one of another kind, for formats that hold only that.
    """

    domain: Domain
    views: Sequence[Callable[[Any], Model]] = ()
    source_columns: Sequence[ColumnNote] = ()
    hidden: frozenset[str] = frozenset()

    @property
    def is_normalised(self) -> bool:
        """Whether p(e) is a probability; False for a circuit whose values do not add up to 1."""
        return True

    @cached_property
    def kept(self) -> Kept:
        """Cache of conditioning results; it is not pickled or copied with the model."""
        return Kept()

    def __getstate__(self) -> dict[str, Any]:
        with guard:
            return {name: value for name, value in vars(self).items() if name != "kept"}

    def condition(self, query: Query, limits: Limits | None = None) -> Posterior:
        """Return p(q | e) as a posterior that fits the limits and can be sampled, the one that `auto` prefers.

        The `query` is made from `self.domain` (see `make_query`); `limits` are those of the conversion, None for
        the defaults. Raises ImpossibleEvidence when p(e) = 0, and ModelError when no representation fits the
        limits, before memory is taken.
        """
        return conversions().condition(self, query, limits=limits)

    def do(self, states: Mapping[str, Label] | None = None, /, **more: Label) -> Model:
        """Refuse interventions (`states`, `more`) with QueryError; `BayesianNetwork.do` allows them."""
        raise QueryError(
            f"a {type(self).__name__} does not tell causes from effects; do() expected a BayesianNetwork or a "
            "LinearGaussianNetwork"
        )

    def write(self, path: str | PathLike[str], format: str | None = None) -> None:
        """Write the model to a file, whole or not at all.

        The suffix of the `path` names the format, and .gz may follow; `format` is a suffix that overrides it.
        Raises ParseError for an unknown format, and ModelError when the format cannot hold the model.
        """
        from certimap import io

        io.write(self, path, format)
