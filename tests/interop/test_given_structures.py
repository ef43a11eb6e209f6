"""Tables of a given structure are those of pgmpy's estimators."""

# pyright: basic, reportMissingImports=false

import numpy as np
import pytest

import certimap as cm

pytest.importorskip("pgmpy")
pytestmark = pytest.mark.filterwarnings("ignore")

import pandas as pd  # noqa: E402
from pgmpy.estimators import BayesianEstimator, MaximumLikelihoodEstimator  # noqa: E402
from pgmpy.models import DiscreteBayesianNetwork  # noqa: E402


@pytest.mark.parametrize("prior", ["ml", "bdeu"])
def test_tables_are_those_of_their_estimators(prior):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(0, k, 200) for name, k in (("a", 2), ("b", 3), ("c", 2))})
    theirs = DiscreteBayesianNetwork([("a", "b"), ("a", "c"), ("b", "c")])
    ours = cm.learn.fit(theirs, frame, prior=prior, strength=5)
    estimator = (MaximumLikelihoodEstimator if prior == "ml" else BayesianEstimator)(theirs, frame)
    how = {} if prior == "ml" else {"prior_type": "BDeu", "equivalent_sample_size": 5}
    theirs.add_cpds(*estimator.get_parameters(**how))
    expected = cm.learn.score_samples(cm.from_object(theirs), frame)
    np.testing.assert_allclose(cm.learn.score_samples(ours, frame), expected, atol=1e-9)
