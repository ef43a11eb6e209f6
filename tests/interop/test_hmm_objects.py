"""Hidden Markov models of hmmlearn and pomegranate, against their own log-likelihoods."""

import numpy as np
import pytest

import certimap as cm

START, MOVE = np.array([0.6, 0.3, 0.1]), np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.0, 0.7]])
EMIT = np.array([[0.1, 0.9], [0.5, 0.5], [1.0, 0.0]])
MEANS, VARIANCES = np.array([[0.0, 1.0], [2.0, -1.0], [5.0, 0.5]]), np.array([[1.0, 2.0], [0.5, 0.1], [3.0, 1.0]])
STEPS = 5
EDGES, STARTS = (MOVE + 1e-9).astype(np.float32), START.astype(np.float32)


def columns(model, rows):
    """Rows of a table over all variables, with the states missing; rows has the shape (steps, features)."""
    flat = np.asarray(rows).reshape(-1)
    frame = {name: [None] for name in model.domain.names if name.startswith("state")}
    names = [name for name in model.domain.names if not name.startswith("state")]
    return frame | {name: [value] for name, value in zip(names, flat.tolist(), strict=True)}


class TestHmmlearn:
    @pytest.fixture
    def hmm(self):
        return pytest.importorskip("hmmlearn.hmm")

    def test_symbols(self, hmm):
        theirs = hmm.CategoricalHMM(n_components=3, n_features=2)
        theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = START, MOVE, EMIT
        ours = cm.from_object(theirs, steps=STEPS)
        for seed in range(5):
            rows = np.random.default_rng(seed).integers(2, size=(STEPS, 1))
            assert cm.log_likelihood(ours, columns(ours, rows))[0] == pytest.approx(theirs.score(rows))
        log_prob, path = theirs.decode(rows)
        result = cm.map_query(ours, evidence={f"symbol{t}": int(s) for t, s in enumerate(rows[:, 0])}, epsilon=0)
        assert list(result.assignment.values()) == path.tolist()
        assert result.log_joint == pytest.approx(log_prob)

    @pytest.mark.parametrize("kind", ["diag", "spherical"])
    def test_gaussians(self, hmm, kind):
        theirs = hmm.GaussianHMM(n_components=3, covariance_type=kind)
        theirs.startprob_, theirs.transmat_, theirs.means_ = START, MOVE, MEANS
        theirs.covars_ = VARIANCES if kind == "diag" else VARIANCES[:, 0]
        theirs.n_features = 2
        ours = cm.from_object(theirs, steps=STEPS)
        rows = np.random.default_rng(1).normal(size=(STEPS, 2)) + 1.0
        assert cm.log_likelihood(ours, columns(ours, rows))[0] == pytest.approx(theirs.score(rows))
        evidence = {f"symbol{t}_{j}": rows[t, j] for t in range(STEPS) for j in range(2)}
        path = cm.map_query(ours, [f"state{t}" for t in range(STEPS)], evidence, epsilon=0)
        assert list(path.assignment.values()) == theirs.decode(rows)[1].tolist()
        assert path.certificate.kind == "exact"

    @pytest.mark.parametrize("kind", ["diag", "spherical"])
    def test_mixtures(self, hmm, kind):
        theirs = hmm.GMMHMM(n_components=3, n_mix=2, covariance_type=kind)
        theirs.startprob_, theirs.transmat_ = START, MOVE
        theirs.weights_ = np.array([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
        theirs.means_ = np.stack([MEANS, MEANS + 1.0], axis=1)
        both = np.stack([VARIANCES, VARIANCES * 2.0], axis=1)
        theirs.covars_ = both if kind == "diag" else both[:, :, 0]
        theirs.n_features = 2
        ours = cm.from_object(theirs, steps=STEPS)
        rows = np.random.default_rng(1).normal(size=(STEPS, 2)) + 1.0
        assert cm.log_likelihood(ours, columns(ours, rows))[0] == pytest.approx(theirs.score(rows))

    def test_what_is_missing_is_said(self, hmm):
        with pytest.raises(cm.ModelError, match="call fit first"):
            cm.from_object(hmm.CategoricalHMM(n_components=3), steps=4)
        with pytest.raises(cm.ModelError, match="PoissonHMM cannot be read"):
            cm.from_object(hmm.PoissonHMM(n_components=3), steps=4)
        theirs = hmm.CategoricalHMM(n_components=3, n_features=2)
        theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = START, MOVE, EMIT
        with pytest.raises(cm.ModelError, match="steps="):
            cm.map_query(theirs)
        theirs = hmm.GaussianHMM(n_components=3, covariance_type="full")
        theirs.startprob_, theirs.transmat_ = START, MOVE
        with pytest.raises(cm.ModelError, match="'full'"):
            cm.from_object(theirs, steps=4)


class TestPomegranate:
    @pytest.fixture
    def torch(self):
        pytest.importorskip("pomegranate")
        return pytest.importorskip("torch")

    def total(self, ours, rows):
        """ln of the unnormalised value, as pomegranate has it: the sequence and its end."""
        return cm.log_likelihood(ours, columns(ours, rows))[0] + cm.log_evidence(ours)

    @pytest.mark.parametrize("ends", [None, [0.1, 0.2, 0.3]])
    def test_symbols_of_two_features(self, torch, ends):
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        parts = [Categorical([row.tolist(), row[::-1].tolist()]) for row in EMIT]
        theirs = DenseHMM(parts, edges=EDGES, starts=STARTS, ends=ends)
        rows = np.random.default_rng(2).integers(2, size=(STEPS, 2))
        expected = float(theirs.log_probability(torch.tensor(rows[None]))[0])
        assert self.total(cm.from_object(theirs, steps=STEPS), rows) == pytest.approx(expected, abs=1e-4)

    def test_sparse_edges(self, torch):
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import SparseHMM

        parts = [Categorical([row.tolist()]) for row in EMIT]
        edges = [(parts[i], parts[j], MOVE[i, j]) for i in range(3) for j in range(3) if MOVE[i, j]]
        theirs = SparseHMM(parts, edges=edges, starts=START.tolist(), ends=[0.1, 0.2, 0.3])
        rows = np.random.default_rng(2).integers(2, size=(STEPS, 1))
        expected = float(theirs.log_probability(torch.tensor(rows[None]))[0])
        assert self.total(cm.from_object(theirs, steps=STEPS), rows) == pytest.approx(expected, abs=1e-4)

    def test_gaussians(self, torch):
        from pomegranate.distributions import Normal
        from pomegranate.hmm import DenseHMM

        parts = [
            Normal(m.tolist(), v.tolist(), covariance_type="diag") for m, v in zip(MEANS, VARIANCES, strict=True)
        ]
        theirs = DenseHMM(parts, edges=EDGES, starts=STARTS)
        rows = np.random.default_rng(2).normal(size=(STEPS, 2)).astype(np.float32)
        expected = float(theirs.log_probability(torch.tensor(rows[None]))[0])
        assert self.total(cm.from_object(theirs, steps=STEPS), rows) == pytest.approx(expected, abs=1e-3)

    def test_a_bayesian_network(self, torch):
        from pomegranate.bayesian_network import BayesianNetwork
        from pomegranate.distributions import Categorical, ConditionalCategorical

        rng = np.random.default_rng(0)
        a, b = Categorical([[0.3, 0.7]]), ConditionalCategorical([rng.dirichlet(np.ones(3), 2).tolist()])
        c = ConditionalCategorical([rng.dirichlet(np.ones(2), (2, 3)).tolist()])
        theirs = BayesianNetwork([a, b, c], edges=[(a, b), (a, c), (b, c)])
        rows = np.stack([rng.integers(k, size=30) for k in (2, 3, 2)], axis=1)
        expected = theirs.log_probability(torch.tensor(rows)).numpy()
        assert cm.log_likelihood(theirs, rows) == pytest.approx(expected, abs=1e-4)
        assert cm.from_object(theirs, names=["x", "y", "z"]).domain.names == ("x", "y", "z")

    def test_other_models_are_refused(self, torch):
        from pomegranate.distributions import Poisson
        from pomegranate.hmm import DenseHMM
        from pomegranate.markov_chain import MarkovChain

        with pytest.raises(cm.ModelError, match="MarkovChain cannot be read"):
            cm.from_object(MarkovChain(k=1))
        theirs = DenseHMM([Poisson([1.0])], edges=[[0.9]], starts=[1.0], ends=[0.1])
        with pytest.raises(cm.ModelError, match="Poisson"):
            cm.from_object(theirs, steps=3)
