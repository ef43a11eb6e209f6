"""pyagrum's networks, against its joint probabilities and its inference."""

import itertools

import numpy as np
import pytest

import certimap as cm

gum = pytest.importorskip("pyagrum")


def test_a_bayesian_network_has_the_same_joint():
    theirs = gum.fastBN("a->b{x|y|z}->c[3];a->c;d{u|v}->c")
    ours = cm.from_object(theirs)
    assert set(ours.domain.names) == {"a", "b", "c", "d"}
    instance = theirs.completeInstantiation()
    labels = [v.states for v in ours.domain]
    for row in itertools.product(*labels):
        values = dict(zip(ours.domain.names, row, strict=True))
        instance.fromdict(values)
        got = ours.log_prob(ours.domain.encode(values)[None])[0]
        assert got == pytest.approx(np.log(theirs.jointProbability(instance)), abs=1e-9)


def test_marginals_are_those_of_lazy_propagation():
    theirs = gum.fastBN("a->b{x|y|z}->c[3];a->c")
    inference = gum.LazyPropagation(theirs)
    inference.setEvidence({"c": 2})
    inference.makeInference()
    found = cm.marginals(theirs, ["a", "b"], {"c": "2"})
    for name, row in found.items():
        assert list(row.values()) == pytest.approx(inference.posterior(name).tolist())


def test_a_random_field_has_the_same_partition():
    theirs = gum.fastMRF("a--b[3];b--c;c--d--a")
    ours = cm.from_object(theirs)
    product = gum.Tensor()
    product.fillWith(1)
    for scope in theirs.factors():
        product = product * theirs.factor(scope)
    assert cm.log_evidence(ours) == pytest.approx(np.log(product.sum()))


def test_a_linear_gaussian_network_has_the_same_posteriors():
    clg = pytest.importorskip("pyagrum.clg")
    theirs = clg.CLG()
    for name, mean, sd in (("a", 1.0, 2.0), ("b", -1.0, 1.5), ("c", 0.5, 0.7)):
        theirs.add(clg.GaussianVariable(name, mean, sd))
    for parent, child, weight in (("a", "b", 0.5), ("a", "c", 0.3), ("b", "c", -2.0)):
        theirs.addArc(parent, child, weight)
    ours = cm.from_object(theirs)
    inference = clg.CLGVariableElimination(theirs)
    inference.updateEvidence({"c": 1.0})
    for name in ("a", "b"):
        found = inference.posterior(name)
        mixture = ours.mixture([name], {"c": 1.0})
        assert mixture.means[0, 0] == pytest.approx(found.mu(), abs=1e-6)
        assert mixture.covariances[0, 0, 0] == pytest.approx(found.sigma() ** 2, abs=1e-6)


def test_influence_diagrams_have_no_probabilities():
    with pytest.raises(cm.QueryError, match="no probabilities until its decisions are made"):
        cm.marginals(gum.fastID("a->*d->$u"), ["a"])
