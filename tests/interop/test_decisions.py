"""Influence diagrams of pyagrum, as objects and as files: the same policies and expected utilities."""

import numpy as np
import pytest

import certimap as cm

gum = pytest.importorskip("pyagrum")


def random_network(seed):
    """Draw a network of two decisions; labels are text, as pyagrum's are."""
    rng = np.random.default_rng(seed)
    names = ["a", "b", "d", "c", "e", "f"]
    sizes = dict(zip(names, rng.integers(2, 4, len(names)).tolist(), strict=True))
    parents = {v: [u for u in names[: names.index(v)] if rng.random() < 0.5] for v in "abcf"}
    tables = {v: rng.dirichlet(np.ones(sizes[v]), [sizes[u] for u in own]) for v, own in parents.items()}
    decisions = {"d": [v for v in "ab" if rng.random() < 0.5], "e": [v for v in "bc" if rng.random() < 0.5]}
    utilities = {}
    for k in range(3):
        scope = rng.permutation(names)[: rng.integers(1, 4)].tolist()
        utilities[f"u{k}"] = (scope, rng.normal(size=[sizes[v] for v in scope]).round(3))
    labels = {v: [f"{v}{k}" for k in range(size)] for v, size in sizes.items()}
    return cm.DecisionNetwork.from_cpts(labels, parents, tables, decisions, utilities)


def solved(diagram):
    inference = gum.ShaferShenoyLIMIDInference(diagram)
    inference.makeInference()
    return inference


@pytest.mark.parametrize("seed", range(12))
def test_pyagrum_agrees_on_what_certimap_writes(tmp_path, seed):
    network = random_network(seed)
    network.write(tmp_path / "m.bifxml")
    theirs = gum.InfluenceDiagram()
    theirs.loadBIFXML(str(tmp_path / "m.bifxml"))
    ours = cm.decide(network)
    expected = solved(theirs).MEU()["mean"]
    assert ours.expected_utility == pytest.approx(expected, abs=1e-5)
    assert ours.upper_bound == pytest.approx(expected, abs=1e-5)
    assert cm.decide(theirs).expected_utility == pytest.approx(ours.expected_utility, abs=1e-5)
    theirs.saveBIFXML(str(tmp_path / "again.bifxml"))
    again = cm.decide(cm.read(tmp_path / "again.bifxml"))
    assert again.expected_utility == pytest.approx(ours.expected_utility, abs=1e-4)


def umbrella():
    diagram = gum.InfluenceDiagram()
    for name, labels in (("Weather", ["dry", "rain"]), ("Forecast", ["good", "bad"])):
        diagram.addChanceNode(gum.LabelizedVariable(name, "", labels))
    diagram.addDecisionNode(gum.LabelizedVariable("Take", "", ["leave", "carry"]))
    diagram.addUtilityNode(gum.LabelizedVariable("Joy", "", 1))
    for parent, child in (("Weather", "Forecast"), ("Forecast", "Take"), ("Weather", "Joy"), ("Take", "Joy")):
        diagram.addArc(parent, child)
    diagram.cpt("Weather")[:] = [0.7, 0.3]
    diagram.cpt("Forecast")[{"Weather": "dry"}] = [0.8, 0.2]
    diagram.cpt("Forecast")[{"Weather": "rain"}] = [0.25, 0.75]
    utilities = {("dry", "leave"): 100, ("dry", "carry"): 60, ("rain", "leave"): 0, ("rain", "carry"): 70}
    for (weather, take), value in utilities.items():
        diagram.utility("Joy")[{"Weather": weather, "Take": take}] = value
    return diagram


def test_an_object_goes_straight_to_decide():
    found = cm.decide(umbrella())
    assert found.expected_utility == pytest.approx(80.15)
    assert [found.choose("Take", {"Forecast": label}) for label in ("good", "bad")] == ["leave", "carry"]
    assert cm.value_of_information(umbrella(), "Take")["Weather"].high == pytest.approx(10.85)
    with pytest.raises(cm.QueryError, match="chance_part"):
        cm.map_query(umbrella(), ["Weather"])


def test_decisions_that_no_arc_orders_are_read_with_a_warning():
    diagram = umbrella()
    diagram.addDecisionNode(gum.LabelizedVariable("Sing", "", 2))
    with pytest.warns(UserWarning, match="no arcs put all decisions in order"):
        assert set(cm.from_object(diagram).decisions) == {"Take", "Sing"}
