"""Models of PyMC and NumPyro, against enumeration by their own log densities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certimap as cm

pytestmark = pytest.mark.filterwarnings("ignore")
MOVES, EMIT = np.array([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]), np.array([[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
SEEN = np.array([0.1, 2.0, 3.0])
NAMES = ["a", "b", "z[0]", "z[1]", "z[2]"]


def check(theirs, log_density):
    """Every joint state has the library's density, and the best of them is the answer."""
    ours = cm.from_object(theirs)
    assert list(ours.domain.names) == NAMES
    points = np.array(list(itertools.product(range(2), range(3), *[range(2)] * 3)))
    expected = np.array([log_density({"a": p[0], "b": p[1], "z": p[2:]}) for p in points])
    assert ours.log_joint(points) == pytest.approx(expected, abs=1e-5)
    result = cm.map_query(theirs, epsilon=0)
    assert list(result.assignment.values()) == points[expected.argmax()].tolist()
    assert result.log_joint == pytest.approx(expected.max(), abs=1e-5)
    return ours


class TestNumpyro:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("numpyro")

    def test_plates_and_observed_values(self):
        import jax
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist
        from numpyro import handlers
        from numpyro.infer.util import log_density

        def model(shift):
            a = numpyro.sample("a", dist.Bernoulli(0.3))
            b = numpyro.sample("b", dist.Categorical(jnp.array(EMIT)[a]))
            with numpyro.plate("rows", 3):
                z = numpyro.sample("z", dist.Categorical(jnp.array(MOVES)[b]))
                numpyro.sample("x", dist.Normal(jnp.array([0.0, 2.0])[z] + shift, 1.0), obs=SEEN)
            numpyro.sample("y", dist.Normal(1.0 * z.sum(), 1.0), obs=2.0)

        def bound():
            model(0.1)

        theirs = handlers.seed(bound, 0)
        ours = check(theirs, jax.jit(lambda row: log_density(theirs, (), {}, row)[0]))
        scopes = [factor.scope for factor in ours.factors]
        assert scopes == [(0,), (0, 1), (1, 2), (1, 3), (1, 4), (2,), (3,), (4,), (2, 3, 4)]
        unseen = cm.from_object(handlers.seed(handlers.block(bound, hide=["x", "y"]), 0))
        assert isinstance(unseen, cm.BayesianNetwork)
        assert unseen.factors[1].table == pytest.approx(EMIT)

    def test_what_is_refused(self):
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist
        from numpyro import handlers
        from numpyro.contrib.control_flow import scan

        def real():
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
            z = numpyro.sample("z", dist.Bernoulli(0.3))
            numpyro.sample("x", dist.Normal(mean + z, 1.0), obs=1.0)

        def no_plate():
            numpyro.sample("z", dist.Categorical(jnp.array(MOVES)))

        def scanned():
            scan(lambda z, _: (numpyro.sample("z", dist.Categorical(jnp.array(MOVES)[z])), None), 0, None, 3)

        def turned():
            with numpyro.plate("rows", 20):
                z = numpyro.sample("z", dist.Bernoulli(0.5))
                numpyro.sample("w", dist.Bernoulli(jnp.array([0.1, 0.8])[z[::-1]]))

        def weighted():
            with handlers.scale(scale=2.0):
                numpyro.sample("z", dist.Bernoulli(0.3))

        for model, words in (
            (real, "'mean' of this numpyro.seed is a Normal"),
            (no_plate, r"'z' .* of the shape \(3,\)"),
            (scanned, r"'z' .* of the shape \(3,\)"),
            (turned, "not understood"),
            (weighted, "do not add to 1"),
        ):
            with pytest.raises(cm.ModelError, match=words):
                cm.from_object(handlers.seed(model, 0))
        given = cm.from_object(handlers.seed(handlers.condition(real, {"mean": 0.5}), 0))
        assert given.domain.names == ("z",)


class TestPymc:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("pymc")

    def test_arrays_potentials_and_observed_values(self):
        import pymc as pm
        import pytensor.tensor as pt

        with pm.Model() as theirs:
            a = pm.Bernoulli("a", 0.3)
            b = pm.Categorical("b", pt.as_tensor(EMIT)[a])
            z = pm.Categorical("z", pt.as_tensor(MOVES)[b], shape=3)
            pm.Normal("x", pt.as_tensor([0.0, 2.0])[z], 1.0, observed=SEEN)
            pm.Normal("y", 1.0 * z.sum(), 1.0, observed=2.0)
            pm.Potential("wish", pt.switch(pt.eq(a, 1), -0.5, 0.0))
        ours = check(theirs, theirs.compile_logp(mode="FAST_COMPILE"))
        scopes = [factor.scope for factor in ours.factors]
        assert scopes == [(0,), (0, 1), (1, 2), (1, 3), (1, 4), (2,), (3,), (4,), (2, 3, 4), (0,)]

    def test_states(self):
        import pymc as pm

        with pm.Model() as theirs:
            pm.DiscreteUniform("u", -1, 2)
            pm.Binomial("n", 2, 0.4)
        ours = cm.from_object(theirs)
        assert [v.states for v in ours.domain] == [(-1, 0, 1, 2), (0, 1, 2)]
        assert ours.factors[1].table == pytest.approx([0.36, 0.48, 0.16])

    def test_what_is_refused(self):
        import pymc as pm

        def model(build):
            with pm.Model() as made:
                build()
            return made

        def wide():
            pm.Poisson("k", 1 + pm.Bernoulli("z", 0.3, shape=30).sum(), observed=3)

        for build, words in (
            (lambda: pm.Bernoulli("z", pm.math.invlogit(pm.Normal("mean"))), "'mean' .* is a normal; expected"),
            (lambda: pm.Poisson("k", 2.0), "'k' .* is a poisson"),
            (lambda: pm.Binomial("n", 1 + pm.Bernoulli("z", 0.5), 0.5), "'n' .* with different ranges"),
            (lambda: pm.Binomial("n", [1, 2], 0.5), "'n' .* with different ranges"),
            (wide, "depends on 30 elements"),
        ):
            with pytest.raises(cm.ModelError, match=words):
                cm.from_object(model(build))
