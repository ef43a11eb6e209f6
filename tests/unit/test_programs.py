"""Networks of programs whose conditionals are tables here, evaluated as PyMC and NumPyro do it."""

import numpy as np
import pytest

import certimap as cm
from certimap.interop.programs import MOST_ROWS, Site, reading_of

TABLE = np.array([[0.2, 0.8], [0.6, 0.4]])
STATES, NONE = np.array([3, 4]), np.zeros(0, np.int64)


def evaluate(rows):
    """A state a, an array z whose elements depend on a, and observations of each z and of their sum."""
    a, z = rows["a"] - 3, rows["z"]
    return {
        "a": np.log([0.3, 0.7])[a],
        "z": np.log(TABLE)[a[:, None], z],
        "seen": -((z - 0.2) ** 2),
        "sum": -1.0 * z.sum(axis=1),
    }


SITES = {
    "a": Site((), STATES, {}),
    "z": Site((3,), np.arange(2), {"a": True}),
    "seen": Site((3,), NONE, {"z": True}),
    "sum": Site((), NONE, {"z": False, "a": True}),
}


def test_the_network_of_a_program():
    reading = reading_of(object(), SITES, evaluate, lambda row: 0.0)
    model = reading.model
    assert model.domain.names == ("a", "z[0]", "z[1]", "z[2]")
    assert model.domain.variables[0].states == (3, 4)
    assert [f.scope for f in model.factors] == [(0,), (0, 1), (0, 2), (0, 3), (1,), (2,), (3,), (1, 2, 3)]
    points = np.indices((2,) * 4).reshape(4, -1).T
    found = evaluate({"a": points[:, 0] + 3, "z": points[:, 1:]})
    expected = sum(part.reshape(len(points), -1).sum(axis=1) for part in found.values())
    assert model.log_joint(points) == pytest.approx(expected)


def test_a_bayesian_network_without_observations():
    model = reading_of(object(), {n: SITES[n] for n in "az"}, evaluate, lambda row: 0.0).model
    assert isinstance(model, cm.BayesianNetwork)
    assert model.factors[2].table == pytest.approx(TABLE)


def test_what_is_refused():
    short = SITES | {"z": Site((3,), np.arange(1), {"a": True})}
    with pytest.raises(cm.ModelError, match=r"'z' .* do not add to 1 over \[0\]"):
        reading_of(object(), short, evaluate, lambda row: 0.0)
    n = MOST_ROWS.bit_length()
    wide = {"z": Site((n,), np.arange(2), {}), "sum": Site((), NONE, {"z": False})}
    with pytest.raises(cm.ModelError, match=f"'sum' .* depends on {n} elements"):
        reading_of(object(), wide, evaluate, lambda row: 0.0)
