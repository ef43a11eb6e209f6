"""Classes and functions by their place: each place exists, and a query loads what answers it alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import certimap
from certimap.conversions import choose
from certimap.core.named import Named, at, is_one_of, place_of
from certimap.core.posterior import Decodes, Draws, Masses, offers
from certimap.io.formats import FORMATS
from certimap.solvers.sampling import Pac

ROOT = Path(certimap.__file__).parent
EXAMPLE = ROOT.parent.parent / "examples" / "asia.bif"
MOST_MODULES = 120  # of this package, for one query to a small network

SMALL_QUERY = """
import sys
import certimap as cm
cm.map_query(cm.read(sys.argv[1]), ["lung"], {"xray": "yes"})
print(*(name for name in sys.modules if name.startswith("certimap")))
"""


def places_in(source: str) -> set[str]:
    """Return the places that a source names whole."""
    texts = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    return {t for t in texts if isinstance(t, str) and t.startswith("certimap.") and t.count(":") == 1}


@pytest.mark.parametrize("module", ["conversions/choose.py", "io/formats.py"])
def test_every_place_exists(module):
    places = places_in((ROOT / module).read_text(encoding="utf-8"))
    assert places
    for place in places:
        assert at(place) is not None


def test_readers_and_writers_exist():
    for form in FORMATS.values():
        for function in (form.reader, form.writer):
            assert function is None or callable(at(function.place))


def test_a_function_is_loaded_when_called():
    absent = Named("certimap.no_such_module:f")
    with pytest.raises(ModuleNotFoundError):
        absent()
    assert Named("math:hypot")(3.0, 4.0) == 5.0


def test_classes_are_known_by_their_place():
    assert place_of(Pac) == "certimap.solvers.sampling:Pac"
    assert is_one_of(Pac(), {"certimap.solvers.base:Solver"})
    assert not is_one_of(Pac(), {"certimap.solvers.exhaustive:Exhaustive"})


def test_what_is_wanted_may_be_named_or_given():
    tree = at("certimap.trees.bucket_tree:BucketTreePosterior")
    assert offers(choose.OF_TREE, (tree, Draws | Decodes))
    assert offers(choose.OF_TREE, (place_of(tree), Masses))
    assert not offers(choose.OF_TREE, (choose.CIRCUIT,))
    assert not offers(choose.OF_TREE, (Decodes,))


def test_a_small_query_loads_little():
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    command = [sys.executable, "-c", SMALL_QUERY, str(EXAMPLE)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    loaded = found.stdout.split()
    assert 0 < len(loaded) <= MOST_MODULES
    rooms = ("learn", "plots", "circuits", "densities", "checker.verdict", "io.xdsl", "interop", "proofs")
    assert [n for n in loaded if n.removeprefix("certimap.").startswith(rooms)] == []
