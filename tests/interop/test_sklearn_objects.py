"""Mixtures and naive Bayes of scikit-learn, against their own log-likelihoods."""

import numpy as np
import pytest

import certimap as cm

pytest.importorskip("sklearn")

from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, ComplementNB, GaussianNB, MultinomialNB

RNG = np.random.default_rng(0)
REAL = np.concatenate([RNG.normal(size=(80, 3)), RNG.normal(size=(80, 3)) * 0.3 + 2.0])
DISCRETE = RNG.integers(3, size=(200, 4))
LABELS = np.array(["no", "yes"])[(DISCRETE.sum(axis=1) + RNG.integers(3, size=200)) % 2]


@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_mixtures(kind):
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0).fit(REAL)
    assert cm.log_likelihood(theirs, REAL) == pytest.approx(theirs.score_samples(REAL))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_mixtures_in_single_precision_with_empty_components_by_hand_and_of_ones_own_class(kind):
    class Own(GaussianMixture):
        pass

    theirs = Own(3, covariance_type=kind, random_state=0).fit(REAL.astype(np.float32))
    assert cm.log_likelihood(theirs, REAL) == pytest.approx(theirs.score_samples(REAL), abs=1e-4)
    theirs.weights_ = np.array([0.4, 0.0, 0.6])
    with np.errstate(divide="ignore"):
        expected = theirs.score_samples(REAL)
        assert cm.log_likelihood(theirs, REAL) == pytest.approx(expected, abs=1e-4)
        by_hand = GaussianMixture(3, covariance_type=kind)
        by_hand.weights_, by_hand.means_ = [0.4, 0.0, 0.6], theirs.means_.tolist()
        by_hand.covariances_ = theirs.covariances_.astype(float)
        assert cm.log_likelihood(by_hand, REAL) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_mixtures_of_one_feature(kind):
    theirs = GaussianMixture(2, covariance_type=kind, random_state=0).fit(REAL[:, :1])
    if kind == "tied":
        assert theirs.covariances_.shape == (1, 1)
    assert cm.log_likelihood(theirs, REAL[:, :1]) == pytest.approx(theirs.score_samples(REAL[:, :1]))


def joint(model, X):
    """ln p(x, y) for each class, shape (rows, classes), by our model."""
    columns = [X[:, j] for j in range(X.shape[1])]
    names = cm.from_object(model).domain.names
    return np.stack(
        [
            cm.log_likelihood(model, dict(zip(names, [*columns, np.array([c] * len(X))], strict=True)))
            for c in model.classes_
        ],
        axis=1,
    )


@pytest.mark.parametrize(
    ("theirs", "X"),
    [
        (CategoricalNB(alpha=0.5), DISCRETE),
        (BernoulliNB(), (DISCRETE > 1).astype(int)),
        (GaussianNB(), REAL[:200][np.arange(200) % 160]),
    ],
)
def test_naive_bayes(theirs, X):
    theirs.fit(X, LABELS)
    assert joint(theirs, X) == pytest.approx(theirs.predict_joint_log_proba(X), abs=1e-9)
    evidence = {str(j): X[0, j] for j in range(X.shape[1])}
    assert cm.map_query(theirs, "class", evidence).assignment["class"] == theirs.predict(X[:1])[0]


def test_another_answer_of_ones_own_class_is_refused():
    class Own(GaussianNB):
        def predict_joint_log_proba(self, X):
            return super().predict_joint_log_proba(X) + 1.0

    with pytest.raises(cm.ModelError, match="not understood"):
        cm.from_object(Own().fit(REAL, LABELS[: len(REAL)]))


def test_names_of_a_frame_and_names_given():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(DISCRETE, columns=["a", "b", "c", "d"])
    theirs = CategoricalNB().fit(frame, LABELS)
    assert cm.from_object(theirs).domain.names == ("a", "b", "c", "d", "class")
    assert cm.from_object(theirs, names=list("pqrs")).domain.names == ("p", "q", "r", "s", "class")
    assert cm.from_object(theirs, names=list("pqrst")).domain.names == ("p", "q", "r", "s", "t")
    with pytest.raises(cm.ModelError, match="names has 2 entries"):
        cm.from_object(theirs, names=["p", "q"])


@pytest.mark.parametrize("model", [GaussianMixture(2), CategoricalNB(), BernoulliNB(), GaussianNB()])
def test_a_model_that_was_never_fitted(model):
    with pytest.raises(cm.ModelError, match="not fitted"):
        cm.map_query(model)


def test_what_is_no_distribution_over_rows_is_refused():
    with pytest.raises(cm.ModelError, match="of no distribution over rows; expected MultinomialNB"):
        cm.from_object(ComplementNB().fit(DISCRETE, LABELS))


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_bayesian_mixtures_by_their_weights_means_and_covariances(kind):
    theirs = BayesianGaussianMixture(n_components=3, covariance_type=kind, random_state=0).fit(REAL)
    covariances = {"full": theirs.covariances_, "tied": np.broadcast_to(theirs.covariances_, (3, 3, 3))}
    flat = theirs.covariances_ if kind == "diag" else np.repeat(np.ravel(theirs.covariances_)[:3, None], 3, axis=1)
    full = covariances[kind] if kind in covariances else np.einsum("kd,de->kde", flat, np.eye(3))
    ours = cm.GaussianMixture(theirs.weights_, theirs.means_, full)
    assert cm.log_likelihood(theirs, REAL) == pytest.approx(ours.log_density(REAL))
    assert cm.map_query(theirs, ["0"], {"1": 2.0}, rng=0).certified


@pytest.mark.parametrize("theirs", [MultinomialNB(), QuadraticDiscriminantAnalysis(reg_param=0.1)])
def test_posteriors_of_classes(theirs):
    rows = DISCRETE if isinstance(theirs, MultinomialNB) else REAL
    labels = LABELS[: len(rows)]
    theirs.fit(rows, labels)
    for row, expected in zip(rows[:10], theirs.predict_proba(rows[:10]), strict=True):
        found = cm.marginals(theirs, "class", {str(j): value for j, value in enumerate(row.tolist())})["class"]
        assert [found[label] for label in theirs.classes_] == pytest.approx(expected, abs=1e-9)


def test_counts_of_a_class_and_features_of_a_discriminant():
    counts = MultinomialNB().fit(DISCRETE, LABELS)
    result = cm.map_query(counts, ["0", "1"], {"class": "yes"}, rng=0)
    mean = DISCRETE.sum() / len(DISCRETE) * np.exp(counts.feature_log_prob_[1, :2])
    assert [result.assignment["0"], result.assignment["1"]] == np.floor(mean).tolist()
    discriminant = QuadraticDiscriminantAnalysis().fit(REAL, LABELS[: len(REAL)])
    mode = cm.map_query(discriminant, ["0", "1", "2"], {"class": "yes"}, epsilon=1e-9, rng=0).assignment
    assert list(mode.values()) == pytest.approx(discriminant.means_[1], abs=1e-6)


def test_a_moved_attribute_is_said_and_nothing_guessed():
    theirs = GaussianMixture(2, covariance_type="diag", random_state=0).fit(REAL)
    del theirs.covariances_
    with pytest.raises(cm.ModelError, match="covariances_"):
        cm.from_object(theirs)
