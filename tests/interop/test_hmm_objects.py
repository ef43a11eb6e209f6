"""Hidden Markov models of hmmlearn and pomegranate, and CRFs, against their own values and decoders."""

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

    def test_steps_over_sequences_are_those_of_baum_and_welch(self, hmm):
        theirs = hmm.CategoricalHMM(n_components=3, n_features=2, n_iter=1, init_params="")
        theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = START, MOVE, EMIT
        own, rng = cm.hidden_markov_model(START, MOVE, EMIT, 2, names=("state[{}]", "symbol[{}]")), np.random
        tables = [{"symbol": rng.default_rng(n).integers(0, 2, n)} for n in (1, 7, 20, 4)]
        rows = np.concatenate([table["symbol"] for table in tables])[:, None]
        settings = {"hidden": {"state": 3}, "sequence": True, "prior": "ml", "n_starts": 1}
        learner = cm.learn.GivenStructure(own, max_steps=4, tolerance=1e-12, **settings).fit(tables)
        for value in learner.history_:
            assert value == pytest.approx(theirs.score(rows, [1, 7, 20, 4]), abs=1e-9)
            theirs.fit(rows, [1, 7, 20, 4])
        assert len(learner.history_) == 4

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

    def compared(self, theirs, rows):
        """The chain of one sequence, after comparison of its path and its total with hmmlearn's."""
        ours = cm.from_object(theirs, observations=rows)
        log_prob, path = theirs.decode(rows)
        result = cm.map_query(ours, epsilon=0)
        assert list(result.assignment.values()) == path.tolist()
        assert result.log_joint == pytest.approx(log_prob)
        assert ours.log_partition == pytest.approx(theirs.score(rows))
        return ours

    @pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
    @pytest.mark.parametrize("name", ["GaussianHMM", "GMMHMM"])
    def test_fitted_gaussians_of_one_sequence(self, hmm, name, kind):
        centre = np.repeat([0.0, 3.0, -2.0, 3.0], 15)[:, None]
        rows = np.random.default_rng(0).normal(size=(60, 2)) + centre
        more = {"n_mix": 2} if name == "GMMHMM" else {}
        theirs = getattr(hmm, name)(3, covariance_type=kind, random_state=0, n_iter=5, **more).fit(rows)
        ours = self.compared(theirs, rows[:20])
        few = cm.from_object(theirs, observations=rows, lengths=[20, 40])
        assert few[0].log_partition == pytest.approx(ours.log_partition)
        assert few[1].log_partition == pytest.approx(theirs.score(rows[20:]))
        if kind in ("diag", "spherical"):  # features as variables too
            assert cm.from_object(theirs, steps=3).domain.names[-1] == "symbol2_1"

    def test_counts(self, hmm):
        theirs = hmm.PoissonHMM(n_components=3)
        theirs.startprob_, theirs.transmat_, theirs.n_features = np.array([0.0, 1.0, 0.0]), MOVE, 2
        theirs.lambdas_ = np.array([[1.0, 2.0], [5.0, 1.0], [9.0, 9.0]])
        rows = np.array([[1, 0], [3, 2], [8, 9], [7, 11], [2, 1], [0, 1]])
        ours = self.compared(theirs, rows)
        assert cm.map_query(ours).assignment["state0"] == 1  # no other start is possible
        theirs = hmm.MultinomialHMM(n_components=3, n_trials=4)
        theirs.startprob_, theirs.transmat_, theirs.emissionprob_, theirs.n_features = START, MOVE, EMIT, 2
        self.compared(theirs, np.array([[1, 3], [4, 0], [2, 2]]))
        with pytest.raises(cm.ModelError, match="observations="):
            cm.from_object(theirs, steps=3)
        with pytest.raises(cm.ModelError, match="whole numbers from 0"):
            cm.from_object(theirs, observations=[[1, 3], [-1, 5]])

    def test_variational_ones_by_their_means(self, hmm):
        vhmm = pytest.importorskip("hmmlearn.vhmm")
        symbols = np.random.default_rng(0).integers(0, 3, (80, 1))
        theirs = vhmm.VariationalCategoricalHMM(n_components=2, random_state=0, n_iter=5).fit(symbols)
        self.compared(theirs, symbols[:10])
        ours = cm.from_object(theirs, steps=STEPS)
        assert cm.log_likelihood(ours, columns(ours, symbols[:5]))[0] == pytest.approx(theirs.score(symbols[:5]))
        rows = np.random.default_rng(1).normal(size=(80, 2))
        theirs = vhmm.VariationalGaussianHMM(n_components=2, covariance_type="full", random_state=0, n_iter=5)
        self.compared(theirs.fit(rows), rows[:10])

    def test_missing_observations_and_symbols(self, hmm):
        theirs = hmm.CategoricalHMM(n_components=3, n_features=2)
        theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = START, MOVE, EMIT
        rows = np.array([[0], [1], [0], [1], [1]])
        self.compared(theirs, rows)
        full = cm.from_object(theirs, steps=STEPS)
        ours = cm.from_object(theirs, observations=[0, np.nan, 0, np.nan, 1])
        assert ours.log_partition == pytest.approx(
            cm.log_evidence(full, {"symbol0": 0, "symbol2": 0, "symbol4": 1})
        )
        with pytest.raises(cm.ModelError, match="no complete observation"):
            cm.from_object(theirs, observations=[np.nan, np.nan])
        with pytest.raises(cm.ModelError, match="numbers from 1 that add to 5"):
            cm.from_object(theirs, observations=rows, lengths=[2, 2])
        with pytest.raises(cm.ModelError, match="takes one of them"):
            cm.from_object(theirs, observations=rows, steps=5)

    def test_what_is_missing_is_said(self, hmm):
        with pytest.raises(cm.ModelError, match="call fit first"):
            cm.from_object(hmm.CategoricalHMM(n_components=3), steps=4)
        with pytest.raises(cm.ModelError, match="call fit first"):
            cm.from_object(hmm.PoissonHMM(n_components=3), observations=[1, 2])
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

    def test_equal_edges_where_none_are_given(self, torch):
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        parts = [Categorical([row.tolist()]) for row in EMIT]
        ours = cm.from_object(DenseHMM(parts, starts=STARTS), steps=STEPS)
        rows = np.random.default_rng(2).integers(2, size=(STEPS, 1))
        theirs = DenseHMM(parts, edges=np.full((3, 3), 1 / 3, np.float32), starts=STARTS)
        expected = float(theirs.log_probability(torch.tensor(rows[None]))[0])
        assert self.total(ours, rows) == pytest.approx(expected, abs=1e-4)

    def test_a_factor_graph(self, torch):
        from pomegranate.distributions import Categorical, JointCategorical
        from pomegranate.factor_graph import FactorGraph

        rng = np.random.default_rng(0)
        a, b, c = (Categorical([rng.dirichlet(np.ones(k)).tolist()]) for k in (2, 3, 2))
        ab, ca = (JointCategorical(rng.dirichlet(np.ones(i * j)).reshape(i, j)) for i, j in ((2, 3), (2, 2)))
        only = Categorical([[0.2, 0.8]])
        edges = [(a, ab), (b, ab), (c, ca), (a, ca), (c, only)]
        theirs = FactorGraph([ab, ca, only], [a, b, c], edges)
        rows = np.stack([rng.integers(k, size=30) for k in (2, 3, 2)], axis=1)
        expected = theirs.log_probability(torch.tensor(rows)).numpy()
        assert cm.log_likelihood(theirs, rows) + cm.log_evidence(theirs) == pytest.approx(expected, abs=1e-4)

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


class TestRandomFields:
    def test_of_pytorch_crf(self):
        torch, torchcrf = pytest.importorskip("torch"), pytest.importorskip("torchcrf")
        torch.manual_seed(0)
        for batch_first in (False, True):
            theirs = torchcrf.CRF(4, batch_first=batch_first)
            emissions = torch.randn(9, 4)
            batch = emissions[None] if batch_first else emissions[:, None]
            result = cm.map_query(cm.from_object(theirs, observations=emissions), epsilon=0)
            [path] = theirs.decode(batch)
            assert list(result.assignment.values()) == path
            tags = torch.tensor(path)
            log_prob = float(theirs(batch, tags[None] if batch_first else tags[:, None]))
            assert result.log_prob == pytest.approx(log_prob, abs=1e-4)
        with pytest.raises(cm.ModelError, match="broadcast"):
            cm.from_object(theirs, observations=torch.zeros(9, 3))
        with pytest.raises(cm.ModelError, match="observations="):
            cm.map_query(theirs)

    def test_of_sklearn_crfsuite(self):
        library = pytest.importorskip("sklearn_crfsuite")
        words = [["the", "cat", "sat"], ["a", "dog", "ran", "fast"], ["the", "dog", "sat"]]
        tags = [["D", "N", "V"], ["D", "N", "V", "A"], ["D", "N", "V"]]

        def features(sentence):
            return [{"word": w, "ends": {"t": w.endswith("t")}, "length": len(w), "bias": 1.0} for w in sentence]

        theirs = library.CRF(c1=0.01, c2=0.1, max_iterations=20)
        theirs.fit([features(s) for s in words], tags)
        sentence = features(["the", "dog", "ran", "fast"])
        ours = cm.from_object(theirs, observations=sentence)
        result = cm.map_query(ours, epsilon=0)
        assert list(result.assignment.values()) == theirs.predict_single(sentence)
        expected = theirs.predict_marginals_single(sentence)
        found = cm.marginals(ours)
        for t, row in enumerate(expected):
            assert found[f"state{t}"] == pytest.approx(row, abs=1e-4)
