"""Classes and functions by their place, "module:name", which are loaded when first needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@cache
def at(place: str) -> Any:
    """Return what lies at a place."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Named:
    """A function that is loaded when it is first called.

    Attributes
    ----------
    place
        Where it lies.
    """

    place: str

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return at(self.place)(*arguments, **keywords)


def place_of(kind: type) -> str:
    """Return the place of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_one_of(thing: object, places: Collection[str]) -> bool:
    """Whether the class of an object, or one that it derives from, is at one of the places."""
    return any(place_of(kind) in places for kind in type(thing).__mro__)
