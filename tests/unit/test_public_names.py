"""What is exported is documented: every parameter by name, what is returned, and a place in the reference."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path

import certimap as cm

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
HEADING = re.compile(r"-{3,}")


def sections(doc):
    """Return the lines of a NumPy docstring by section."""
    lines = inspect.cleandoc(doc or "").splitlines()
    found, current = {}, None
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.strip() and HEADING.fullmatch(below):
            current = found.setdefault(line, [])
        elif current is not None and not HEADING.fullmatch(line):
            current.append(line)
    return found


def named(lines):
    """Return the names that a section lists: those that stand at the margin."""
    return {name.strip().lstrip("*") for line in lines if line[:1].strip() for name in line.split(",")}


def parameters(function):
    skipped = ("self", "cls")
    try:
        found = inspect.signature(function).parameters
    except ValueError:  # of a class without a signature, such as an exception
        return []
    return [name for name in found if name not in skipped and not name.startswith("_")]


def lacks_of_function(function):
    held = sections(function.__doc__)
    told = named(held.get("Parameters", [])) | set(re.findall(r"`(\w+)", function.__doc__ or ""))
    lacks = [name for name in parameters(function) if name not in told]
    returned = inspect.signature(function).return_annotation
    says_nothing = returned in (None, "None", inspect.Signature.empty)
    is_plain = re.fullmatch(r"[\w.]+", str(returned)) and returned not in ("Any", "dict", "float")  # it says all
    is_told = is_plain or (function.__doc__ or "").lstrip().startswith(("Return", "Yield"))
    return lacks + ([] if says_nothing or is_told or {"Returns", "Yields"} & set(held) else ["Returns"])


def lacks_of_class(kind):
    """Return what a class does not document; fields of plain data may be its Attributes."""
    if getattr(kind, "_is_protocol", False):
        return []
    held = sections(kind.__doc__)
    known = named(held.get("Parameters", [])) | named(held.get("Attributes", []))
    known |= set(re.findall(r"`\**(\w+)", kind.__doc__ or ""))
    return [name for name in parameters(kind) if name not in known]


def is_data(thing):
    return not callable(thing) or (inspect.isclass(thing) and issubclass(thing, (Exception, enum.Enum)))


def exported():
    """Yield every public name of the package and of its rooms, with what it stands for."""
    for name in sorted(cm._PLACES):
        thing = getattr(cm, name)
        if not inspect.ismodule(thing):
            yield name, thing
        else:
            yield from ((f"{name}.{own}", getattr(thing, own)) for own in getattr(thing, "__all__", ()))


def methods(kind):
    """Yield the public methods that a class defines itself."""
    for name, found in vars(kind).items():
        method = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if inspect.isfunction(method) and not name.startswith("_"):
            yield name, method


def test_every_parameter_and_every_return_is_documented():
    lacks = {}
    for name, thing in exported():
        if is_data(thing):
            continue
        lacks[name] = lacks_of_class(thing) if inspect.isclass(thing) else lacks_of_function(thing)
        if inspect.isclass(thing) and "." not in name:
            lacks |= {f"{name}.{own}": lacks_of_function(method) for own, method in methods(thing)}
    assert {name: what for name, what in lacks.items() if what} == {}


def resolved(path):
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        place, _, name = path.rpartition(".")
        return getattr(resolved(place), name)


def test_every_public_name_has_a_place_in_the_reference():
    places = re.findall(r"^::: (\S+)", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(places)) == len(places)
    shown = {id(thing) for thing in map(resolved, places)}
    shown |= {id(thing) for thing in vars(cm.errors).values()}  # the page shows that module whole
    assert [name for name, thing in exported() if id(thing) not in shown] == []


def test_the_gate_sees_what_is_missing():
    def well(a, *, b=1, **more) -> int:
        """Say.

        Parameters
        ----------
        a, b
            Numbers.
        **more
            Ignored.

        Returns
        -------
        int
            Their sum.
        """

    def badly(a, b) -> dict[str, int]:
        """Say.

        Parameters
        ----------
        a
            A number, b.
        """

    assert lacks_of_function(well) == []
    assert lacks_of_function(badly) == ["b", "Returns"]
