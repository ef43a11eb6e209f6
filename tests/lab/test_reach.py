"""The models and the table of `certimap bench reach`."""

import numpy as np
import pytest

import certimap as cm
from certimap.errors import CertimapError
from certimap_lab.bench.random_chains import random_chain, random_classes
from certimap_lab.bench.reach import Question, ReachFamily, families_named, run_reach, tree_mixture


def test_mixtures_of_trees_are_distributions_and_the_same_for_a_seed():
    first, second = (cm.condition(tree_mixture(5, 3, 2, 7)) for _ in range(2))
    points = np.array(np.unravel_index(np.arange(32), (2,) * 5)).T
    assert np.exp(first.log_prob(points)).sum() == pytest.approx(1.0)
    assert first.log_evidence == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_array_equal(first.log_prob(points), second.log_prob(points))


def test_a_line_per_family():
    family = ReachFamily("small", "small ones", lambda seed: Question(tree_mixture(6, 2, 2, seed)))
    lines: list[str] = []
    table = run_reach([family], [0, 1], 0.01, 20.0, lines.append)
    assert table.rows[0][:2] == ["small ones", "2 of 2"]
    assert len(lines) == 2
    assert all("proved" in line for line in lines)


def test_an_unknown_family_is_refused_by_name():
    with pytest.raises(CertimapError, match=r"'trees-64-1'.*trees-64-1-10"):
        families_named(["trees-64-1"])


@pytest.mark.parametrize("name", ["hmm-100-5-10", "latent-class-1000-60-2"])
def test_chains_and_classes_ask_for_what_is_seen(name):
    (family,) = families_named([name])
    question = family.make(3)
    assert question.variables is not None
    assert len(question.variables) == {"hmm-100-5-10": 100, "latent-class-1000-60-2": 60}[name]
    hidden = len(question.model.domain) - len(question.variables)
    assert hidden == {"hmm-100-5-10": 100, "latent-class-1000-60-2": 1}[name]


def test_a_chain_is_the_same_for_a_seed():
    first, second = (random_chain(4, 3, 2, 5) for _ in range(2))
    values = [
        cm.map_query(model, names, epsilon=0.0, rng=0, progress=False).log_prob for model, names in (first, second)
    ]
    assert values[0] == values[1]
    model, names = random_classes(3, 2, 2, 5)
    assert cm.map_query(model, names, epsilon=0.0, rng=0, progress=False).certified
