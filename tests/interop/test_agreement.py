"""Objects that would be read as something else are refused, and honest objects at the edges are read."""

import itertools
import math

import numpy as np
import pytest

import certimap as cm
from certimap.circuits.nodewise import circuit_values
from certimap.core.model import Model
from certimap.core.named import at
from certimap.interop.reading import READERS, Reading, check_agreement

# ------------------------------------------------------------ the comparison itself, without any library


def chain(tables=None):
    tables = {"a": [0.6, 0.4], "b": [[0.9, 0.1], [0.2, 0.8]]} if tables is None else tables
    return cm.BayesianNetwork.from_cpts({"a": [0, 1], "b": ["x", "y"]}, {"b": ["a"]}, tables)


def as_points(rows):
    return np.asarray(rows).astype(np.int64)


def test_equal_values_pass_and_others_are_refused_with_the_assignment():
    model = chain()
    check_agreement(Reading(model, lambda rows: model.log_joint(as_points(rows))), object())
    wrong = chain({"a": [0.6, 0.4], "b": [[0.9, 0.1], [0.3, 0.7]]})
    with pytest.raises(cm.ModelError, match=r"assignment a=1, b='[xy]' the log value .* nothing is guessed"):
        check_agreement(Reading(model, lambda rows: wrong.log_joint(as_points(rows))), object())


@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan, math.inf])
def test_no_value_passes_for_another(value):
    """Where one side is -inf the other must be, too: the distance of infinities says nothing."""
    model = chain()
    with pytest.raises(cm.ModelError, match="nothing is guessed"):
        check_agreement(Reading(model, lambda rows: np.full(len(rows), value)), object())
    empty = chain({"a": [1.0, 0.0], "b": [[1.0, 0.0], [0.5, 0.5]]})
    full = lambda rows: np.zeros(len(rows))  # noqa: E731
    with pytest.raises(cm.ModelError, match="nothing is guessed"):
        check_agreement(Reading(empty, full), object())


def test_what_the_library_says_of_itself():
    model = chain()
    with pytest.raises(cm.ModelError, match=r"by its own library \(ZeroDivisionError: division by zero\)"):
        check_agreement(Reading(model, lambda rows: 1 / 0), object())
    with pytest.raises(cm.ModelError, match="gave 1 values for 8"):
        check_agreement(Reading(model, lambda rows: [0.0]), object())


def test_hidden_variables_are_summed_out():
    model = chain()
    totals = np.log([0.6 * 0.9 + 0.4 * 0.2, 0.6 * 0.1 + 0.4 * 0.8])
    check_agreement(Reading(model, lambda rows: totals[as_points(rows)[:, 1]], hidden=[0]), object())
    circuit = model.compile()
    check_agreement(Reading(circuit, lambda rows: totals[as_points(rows)[:, 1]], hidden=[0]), object())


@pytest.mark.parametrize("seed", range(5))
def test_values_of_circuits_are_those_of_the_posterior(seed):
    rng = np.random.default_rng(seed)
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", (0, 1, 2)), cm.Real("x"), cm.Real("y")]))
    parts = [
        builder.product(
            [
                builder.categorical(0, np.log(rng.dirichlet(np.ones(3))).tolist()),
                builder.gaussian(1, rng.normal(), 1.0 + rng.random()),
                builder.real("truncated_gaussian", 2, rng.normal(), 1.0, -1.0, 2.0),
            ]
        )
        for _ in range(3)
    ]
    builder.sum(parts, np.log(rng.dirichlet(np.ones(3))).tolist())
    circuit = builder.build()
    rows = np.column_stack([rng.integers(3, size=20), rng.normal(size=20), rng.uniform(-1.5, 2.5, size=20)])
    assert circuit_values(circuit, rows) == pytest.approx(cm.log_likelihood(circuit, rows), abs=1e-9)
    rows[::2, 0], rows[::3, 1], rows[::5, 2] = np.nan, np.nan, np.nan
    columns = {
        "a": [None if np.isnan(v) else int(v) for v in rows[:, 0]], "x": rows[:, 1], "y": rows[:, 2]
    }  # fmt: skip
    assert circuit_values(circuit, rows) == pytest.approx(cm.log_likelihood(circuit, columns), abs=1e-9)


def test_every_reader_says_how_it_is_compared():
    """from_object compares what a reader returns; a reader that returned a model would not be compared."""
    for place in set(READERS.values()):
        assert at(f"certimap.interop.{place}").__annotations__["return"] == "Reading"
    assert not issubclass(Reading, Model)


# ------------------------------------------------------------ pyagrum


AGGREGATORS = ("OR", "AND", "MAX", "MIN", "MEDIAN", "SUM", "AMPLITUDE", "COUNT", "EXISTS", "FORALL")
WEIGHTED = ("NoisyAND", "NoisyOR", "NoisyORCompound", "NoisyORNet", "Logit")


@pytest.mark.parametrize("kind", [*AGGREGATORS, *WEIGHTED])
def test_nodes_that_are_no_plain_tables(kind):
    gum = pytest.importorskip("pyagrum")
    rng = np.random.default_rng(sum(map(ord, kind)))
    theirs = gum.BayesNet()
    for name in "abc":
        theirs.add(gum.RangeVariable(name, name, 0, 1))
        p = rng.random()
        theirs.cpt(name).fillWith([p, 1 - p])
    child = gum.RangeVariable("y", "y", 0, 3 if kind in ("SUM", "AMPLITUDE") else 1)
    if kind in ("COUNT", "EXISTS", "FORALL"):
        getattr(theirs, f"add{kind}")(child, 1)
    elif kind in WEIGHTED:
        getattr(theirs, f"add{kind}")(child, 0.1)
    else:
        getattr(theirs, f"add{kind}")(child)
    for name in "abc":
        if kind in WEIGHTED:
            theirs.addWeightedArc(name, "y", float(rng.uniform(0.1, 0.9)))
        else:
            theirs.addArc(name, "y")
    theirs.add(gum.LabelizedVariable("z", "z", 2))
    theirs.addArc("y", "z")
    theirs.generateCPT("z")
    inference = gum.LazyPropagation(theirs)
    inference.makeInference()
    found = cm.marginals(theirs, ["y", "z"])
    for name in ("y", "z"):
        assert list(found[name].values()) == pytest.approx(inference.posterior(name).tolist(), abs=1e-9)


# ------------------------------------------------------------ scikit-learn and hmmlearn


@pytest.mark.parametrize("binarize", [1.0, 2])
def test_classifiers_that_cut_zero_and_one_alike_are_refused(binarize):
    naive_bayes = pytest.importorskip("sklearn.naive_bayes")
    rows, labels = np.random.default_rng(0).normal(size=(50, 3)) * 3, np.arange(50) % 2
    with pytest.raises(cm.ModelError, match="binarize"):
        cm.from_object(naive_bayes.BernoulliNB(binarize=binarize).fit(rows, labels))
    assert cm.from_object(naive_bayes.BernoulliNB(binarize=0.5).fit(rows, labels)).domain.names[-1] == "class"


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("seed", range(3))
def test_mixtures_in_single_precision_and_with_empty_components(kind, seed):
    mixture = pytest.importorskip("sklearn.mixture").GaussianMixture
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=(300, 3)) @ rng.normal(size=(3, 3)) + 2 * rng.integers(3, size=(300, 1))).astype(
        np.float32
    )
    theirs = mixture(3, covariance_type=kind, random_state=0).fit(rows)
    assert cm.log_likelihood(theirs, rows[:40]) == pytest.approx(theirs.score_samples(rows[:40]), abs=1e-3)
    theirs.weights_ = np.array([0.4, 0.0, 0.6])
    with np.errstate(divide="ignore"):
        expected = theirs.score_samples(rows[:40])
        assert cm.log_likelihood(theirs, rows[:40]) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["diag", "spherical"])
@pytest.mark.parametrize("features", [1, 2, 3])
def test_fitted_hidden_markov_models(kind, features):
    hmm = pytest.importorskip("hmmlearn.hmm")
    rows = np.random.default_rng(0).normal(size=(200, features))
    theirs = hmm.GaussianHMM(n_components=3, covariance_type=kind, random_state=0, n_iter=3).fit(rows)
    ours = cm.from_object(theirs, steps=4)
    names = [name for name in ours.domain.names if name.startswith("symbol")]
    evidence = dict(zip(names, rows[:4].ravel().tolist(), strict=True))
    assert cm.log_evidence(ours, evidence) == pytest.approx(theirs.score(rows[:4]))


def test_steps_are_whole_numbers():
    hmm = pytest.importorskip("hmmlearn.hmm")
    theirs = hmm.CategoricalHMM(n_components=2, n_features=2)
    theirs.startprob_, theirs.transmat_ = np.array([0.5, 0.5]), np.full((2, 2), 0.5)
    theirs.emissionprob_ = np.full((2, 2), 0.5)
    for steps in (1.5, "3", True, 0, -1):
        with pytest.raises(cm.ModelError, match="expected a whole number from 1"):
            cm.from_object(theirs, steps=steps)
    assert len(cm.from_object(theirs, steps=np.int64(3)).domain) == len(cm.from_object(theirs, steps=3.0).domain)


# ------------------------------------------------------------ libraries on PyTorch


@pytest.mark.parametrize("seed", range(5))
def test_sparse_edges_added_one_by_one(seed):
    pytest.importorskip("pomegranate")
    torch = pytest.importorskip("torch")
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import SparseHMM

    rng = np.random.default_rng(seed)
    parts = [Categorical([row.tolist()]) for row in rng.dirichlet(np.ones(2), 3)]
    theirs = SparseHMM([*parts])
    for i, j in itertools.product(range(3), repeat=2):
        if (i, j) != (1, 0):
            theirs.add_edge(parts[i], parts[j], float(rng.uniform(0.1, 0.3)))
    for part in parts:
        theirs.add_edge(theirs.start, part, 1 / 3)
        theirs.add_edge(part, theirs.end, 0.1)
    ours = cm.from_object(theirs, steps=4)
    assert isinstance(theirs.edges, list)  # it was not changed
    symbols = rng.integers(2, size=4)
    expected = float(theirs.log_probability(torch.tensor(symbols[None, :, None]))[0])
    evidence = {f"symbol{t}": int(s) for t, s in enumerate(symbols)}
    assert cm.log_evidence(ours, evidence) == pytest.approx(expected, abs=1e-4)


def test_an_object_that_its_library_cannot_lay_out_is_refused():
    pytest.importorskip("pomegranate")
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import SparseHMM

    parts = [Categorical([[0.1, 0.9]])]
    theirs = SparseHMM([*parts], starts=[1.0])
    theirs.add_edge(parts[0], parts[0], 0.5)
    with pytest.raises(cm.ModelError, match="SparseHMM cannot be read"):
        cm.from_object(theirs, steps=2)


def binomial(n, p):
    k = np.arange(n + 1)
    ways = np.array([math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) for j in k])
    return ways + k * math.log(p) + (n - k) * math.log1p(-p)


def test_binomial_leaves_of_many_trials():
    torch = pytest.importorskip("torch")
    leaves = pytest.importorskip("spflow.modules.leaves")
    from spflow.meta.data.scope import Scope

    for n in (3, 1100):
        leaf = leaves.Binomial(Scope([0]), total_count=torch.tensor([[[n]]]), probs=torch.tensor([[[0.3]]]))
        ours = cm.from_object(leaf)
        assert ours.params == pytest.approx(binomial(n, 0.3), abs=1e-4, rel=1e-4)


def test_modules_in_half_precision():
    torch = pytest.importorskip("torch")
    leaves = pytest.importorskip("spflow.modules.leaves")
    from spflow.meta.data.scope import Scope

    for kind in (torch.bfloat16, torch.float16, torch.float64):
        leaf = leaves.Categorical(Scope([0]), probs=torch.tensor([[[[0.25, 0.75]]]])).to(kind)
        ours = cm.from_object(leaf)
        assert np.exp(ours.params) == pytest.approx([0.25, 0.75], abs=1e-2)
        assert {p.dtype for p in leaf.parameters()} == {kind}


# ------------------------------------------------------------ arfpy


def test_frames_with_numbers_for_names():
    pytest.importorskip("arfpy")
    from arfpy import arf

    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({0: rng.normal(size=200), 1: pd.Categorical(rng.choice(["a", "b"], 200))})
    named = table.rename(columns={0: "0", 1: "1"})
    found = []
    for frame in (table, named):
        np.random.seed(0)
        forest = arf.arf(frame, num_trees=3, verbose=False, random_state=0)
        forest.forde()
        found.append(cm.from_object(forest))
    rows = {"0": rng.normal(size=5), "1": ["a", "b", "a", "b", "a"]}
    assert cm.log_likelihood(found[0], rows) == pytest.approx(cm.log_likelihood(found[1], rows))
