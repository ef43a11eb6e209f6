"""A bounded cache of results that one query to a model leaves for the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

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
            found = self._things.get(key)
            if found is None:
                return None
            self._things.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, thing: Any, n_bytes: float) -> None:
        """Cache a value of about `n_bytes` bytes."""
        if SHARE_OF_ONE * n_bytes > MOST_BYTES:
            return
        with self._lock:
            self._n_bytes += n_bytes - self._things.pop(key, (None, 0.0))[1]
            self._things[key] = (thing, n_bytes)
            while self._n_bytes > MOST_BYTES or len(self._things) > MOST_THINGS:
                self._n_bytes -= self._things.popitem(last=False)[1][1]
