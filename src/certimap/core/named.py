"""Classes and functions named by place, "module:name", and imported when first needed."""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from certimap.errors import MissingDependency


@cache
def at(place: str) -> Any:
    """Import and return the object at a place."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True)
class Named:
    """A function that is imported when it is first called."""

    place: str  # its place, "module:name"

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function."""
        return at(self.place)(*arguments, **keywords)


def lazily(package: str) -> tuple[dict[str, str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return what loads the names in a package's `__init__.pyi` when first used.

    That is the module of every name (of a module: the package), and the package's `__getattr__` and `__dir__`.
    """
    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None
    lines = re.findall(r"^from (\S+) import (\w+) as \2$", stub.decode("ascii"), re.MULTILINE)
    places: dict[str, str] = {name: module for module, name in lines}

    def loaded(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_module(f"{package}.{name}") if place == package else getattr(import_module(place), name)
        vars(sys.modules[package])[name] = value
        return value

    def names() -> list[str]:
        return sorted({*places, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return places, loaded, names


def needed(module: str, sentence: str) -> Any:
    """Import a module of an optional package; where it is missing, raise MissingDependency with a sentence."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingDependency(sentence) from None


def place_of(kind: type) -> str:
    """Return the place of a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def is_one_of(thing: object, places: Collection[str]) -> bool:
    """Whether an object is an instance of a class at one of the places, without importing any."""
    return any(place_of(kind) in places for kind in type(thing).__mro__)
