"""What users get wrong at the doors, and the one sentence that says so."""

import contextlib
import inspect

import numpy as np
import pytest

import certimap as cm
from certimap.core.arguments import KEYWORDS
from certimap.errors import CertimapError, DataError, ParseError, WriteError, did_you_mean

pd = pytest.importorskip("pandas")
ASIA = "examples/asia.bif"
FRAME = pd.DataFrame({"a": [1, 2, 1, 2], "b": [0, 1, 1, 1]})


@pytest.fixture(scope="module")
def asia():
    return cm.read(ASIA)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"eps": 0.1}, "did you mean 'epsilon'"),
        ({"timelimit": 5}, "did you mean 'time_limit'"),
        ({"seed": 5}, "did you mean 'rng'"),
        ({"timelimit": 5, "solver": "pac"}, "did you mean 'time_limit'"),
        ({"batch": 5}, "name a solver, or set it on the solver object"),
        ({"epsilon": "0"}, r"epsilon is '0'; expected a number in \[0, 1\)"),
        ({"delta": None}, "delta is None"),
        ({"tolerance": "a"}, "tolerance is 'a'"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"time_limit": "5"}, "time_limit is '5'; expected a number not below 0"),
        ({"time_limit": float("nan")}, "time_limit is nan"),
        ({"max_samples": "5"}, "max_samples is '5'"),
        ({"max_memory": "1G"}, "max_memory is '1G'"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_k": True}, "top_k is True"),
        ({"workers": 1.5}, "workers is 1.5"),
        ({"max_edges": "5"}, "max_edges is '5'"),
        ({"n_jobs": "a"}, "n_jobs is 'a'"),
        ({"device": 3}, "device is 3"),
        ({"max_proof": "1"}, "max_proof is '1'"),
        ({"errors": "kep"}, "errors is 'kep'; expected 'raise' or 'keep'"),
        ({"solver": None}, "None is no solver"),
        ({"solver": np.array(["auto"])}, "is no solver; expected one of auto"),
        ({"solver": np.array(["auto", "wmb"])}, "is no solver; expected one of auto"),
        ({"rng": 1.5}, "rng is 1.5"),
    ],
)
def test_settings(asia, settings, said):
    with pytest.raises(cm.SolverError, match=said):
        cm.map_query(asia, ["lung"], **settings)


def test_numbers_of_numpy_and_whole_floats_are_numbers(asia):
    settings = {"epsilon": np.float32(0.25), "max_samples": 1e6, "top_k": np.int64(2), "rng": np.int8(3)}
    found = cm.map_query(asia, ["lung"], **settings)
    assert len(found.top) == 2
    assert len(cm.sample(asia, np.int64(3), rng=0)["lung"]) == len(cm.sample(asia, 3.0, rng=0)["lung"]) == 3


def test_keywords_are_those_of_map_query():
    given = inspect.signature(cm.map_query).parameters
    assert set(KEYWORDS) == set(given) - {"model", "variables", "evidence", "solver_options"}


def test_a_beginning_alone_is_enough_to_be_understood():
    assert did_you_mean("eps", KEYWORDS) == "; did you mean 'epsilon'?"
    assert did_you_mean("max", KEYWORDS) == ""  # of several
    assert did_you_mean("ep", KEYWORDS) == ""


@pytest.mark.parametrize("n", [10.5, "10", -1, None, True, float("inf")])
def test_numbers_of_samples(asia, n):
    with pytest.raises(cm.QueryError, match="expected a whole number of samples from 0"):
        cm.sample(asia, n)


def test_queries_that_are_no_names(asia):
    with pytest.raises(cm.QueryError, match="the query is 3; expected a name"):
        cm.map_query(asia, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ASIA, r"cm\.read\('examples/asia\.bif'\)"),
        ("rows.csv", r"path of a table, and no model; cm\.learn\.hclt"),
        (FRAME, r"a DataFrame is a table, and no model; cm\.learn\.hclt"),
        (np.zeros((3, 2)), r"a ndarray is a table"),
        ({"a": [0, 1]}, r"a dict is a table"),
        (cm.BayesianNetwork, "the class BayesianNetwork itself is no model"),
        (None, "a NoneType is no model"),
        (3, "is no model"),
    ],
)
def test_what_is_no_model(given, said):
    for ask in (cm.map_query, cm.marginals, cm.log_evidence, cm.condition, lambda x: cm.sample(x, 3)):
        with pytest.raises(cm.QueryError, match=said):
            ask(given)


def test_fitted_estimators_are_models():
    fitted = cm.learn.LearnSPN(random_state=0).fit(FRAME)
    assert cm.map_query(fitted, epsilon=0).assignment == cm.map_query(fitted.model_, epsilon=0).assignment
    assert cm.marginals(fitted, ["a"]) == cm.marginals(fitted.model_, ["a"])
    with pytest.raises(cm.QueryError, match=r"call its fit\(data\) first"):
        cm.map_query(cm.learn.LearnSPN())


def test_files(asia, tmp_path):
    with pytest.raises(ParseError, match="a table is no model"):
        cm.read("examples/weather.csv")
    with pytest.raises(cm.ModelError, match="a DataFrame was given; expected the path of a model file"):
        cm.read(FRAME)
    absent = tmp_path / "absent"
    for write in (cm.io.write, lambda m, p: m.write(p)):
        for name in ("m.bif", "m.npz", "m.bif.gz"):
            with pytest.raises(WriteError, match="absent' does not exist") as caught:
                write(asia, absent / name)
            assert isinstance(caught.value, CertimapError)
            assert isinstance(caught.value, OSError)
            assert caught.value.filename == str(absent / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"m\.bif: Not a directory"):
        asia.write(tmp_path / "file" / "m.bif")


def test_proofs(asia, tmp_path):
    result = cm.map_query(asia, ["lung"], proof=True)
    with pytest.raises(WriteError, match="absent' does not exist"):
        result.proof.write(tmp_path / "absent" / "p.npz")
    assert cm.check(asia, result)
    for path in (tmp_path / "m.bif", tmp_path / "m.npz", tmp_path / "m.uai"):
        asia.write(path)
        with pytest.raises(ParseError, match="no proof; expected what"):
            cm.check(asia, path)
    with pytest.raises(cm.QueryError, match=r"map_query\(\.\.\., proof=True\)"):
        cm.check(asia, cm.map_query(asia, ["lung"]))
    with pytest.raises(cm.QueryError, match="a BayesianNetwork is no proof"):
        cm.check(asia, asia)
    with pytest.raises(cm.QueryError, match=r"cm\.read\("):
        cm.check(ASIA, result)


def test_names_that_stand_twice(asia):
    doubled = pd.DataFrame([["yes", "no"]], columns=["smoke", "smoke"])
    with pytest.raises(cm.QueryError, match="two columns named 'smoke'"):
        cm.map_query(asia, ["lung"], doubled)
    with pytest.raises(cm.QueryError, match="two values named 'smoke'"):
        cm.map_query(asia, ["lung"], doubled.iloc[0])
    with pytest.raises(DataError, match=r"two columns named '?1'?"):
        cm.learn.hclt({1: [0, 1], "1": [1, 0]})


def test_a_single_parent_may_stand_by_itself():
    tables = {"rain": [0.8, 0.2], "wet": [[0.9, 0.1], [0.3, 0.7]]}
    states = {"rain": ["no", "yes"], "wet": ["no", "yes"]}
    network = cm.BayesianNetwork.from_cpts(states, {"wet": "rain"}, tables)
    assert network.parents == ((), (0,))
    letters = {"a": [0, 1], "b": [0, 1], "ab": [0, 1]}
    with pytest.raises(cm.ModelError, match=r"parents\['wet'\] is 3"):
        cm.BayesianNetwork.from_cpts(states, {"wet": 3}, tables)
    tables = {"a": [0.5, 0.5], "b": [0.5, 0.5], "ab": np.full((2, 2, 2), 0.5)}
    with pytest.raises(cm.ModelError, match="'ab'"):
        cm.BayesianNetwork.from_cpts(letters, {"ab": "ab"}, tables)


@pytest.mark.parametrize(
    ("start", "move", "emit", "said"),
    [
        ([0.5, 0.5], [[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 0.0]], "row 1 of emission adds to 0"),
        ([0.5, 0.5], [[0.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]], "row 0 of transition adds to 0"),
        ([0.0, 0.0], [[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]], "start adds to 0"),
    ],
)
def test_rows_of_zeros_in_a_hidden_markov_model(start, move, emit, said):
    with pytest.raises(cm.ModelError, match=said):
        cm.hidden_markov_model(start, move, emit, 3)
    with pytest.raises(cm.ModelError, match=r"steps is 1\.5"):
        cm.hidden_markov_model([1.0], [[1.0]], [[1.0]], 1.5)


@pytest.mark.parametrize("label", [None, float("nan"), np.nan, pd.NA, pd.NaT])
def test_labels_that_mean_unobserved_are_no_states(label):
    with pytest.raises(cm.ModelError, match="which means 'unobserved'"):
        cm.Categorical("x", ("a", label))


def test_numbers_beyond_floats_are_shown_as_logs():
    model = cm.MarkovNetwork(cm.Domain.of_sizes([2] * 1200), [cm.Factor((i,), [0.02, 0.01]) for i in range(1200)])
    text = str(cm.map_query(model, ["0"], {str(i): 1 for i in range(1, 1200)}))
    assert "evidence     ln p(e) = -5" in text
    assert "e-2" not in text
    whole = str(cm.map_query(cm.MarkovNetwork(model.domain, [cm.Factor((i,), [0.5, 0.4]) for i in range(1200)])))
    assert "probability  4.7" in whole  # within floats, with its log
    tiny = str(cm.map_query(cm.MarkovNetwork(model.domain, [cm.Factor((i,), [0.5, 0.49]) for i in range(1200)])))
    assert "probability  ln p = -8" in tiny
    assert "<= ln best <= -8" in tiny


def test_advice_names_parameters_that_the_function_has():
    rng = np.random.default_rng(0)
    n = 40
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    model = cm.MarkovNetwork(cm.Domain.of_sizes([2] * n), [cm.Factor(p, rng.random((2, 2)) + 0.1) for p in pairs])
    for ask in (cm.marginals, cm.log_evidence, lambda m: cm.sample(m, 3), lambda m: cm.condition(m, solver="pac")):
        with pytest.raises(cm.CertimapError) as caught:
            ask(model)
        assert "max_memory or max_edges" not in str(caught.value)
        assert any(way in str(caught.value) for way in ("observe more", "out of reach", "log_evidence_bounds()"))


def test_marginals_of_impossible_evidence(asia):
    impossible = {"tub": "yes", "either": "no"}
    for asked in (["tub"], ["either", "tub"], ["asia"], None):
        with pytest.raises(cm.ImpossibleEvidence):
            cm.marginals(asia, asked, impossible)
    assert cm.marginals(asia, ["tub"], {"tub": "yes"}) == {"tub": {"yes": 1.0, "no": 0.0}}


def test_limits_and_tables_of_the_other_functions(asia):
    with pytest.raises(cm.QueryError, match="i_bound is '3'; expected a whole number from 1"):
        cm.log_evidence_bounds(asia, i_bound="3")
    with pytest.raises(cm.SolverError, match="time_limit is '3'"):
        cm.log_evidence_bounds(asia, time_limit="3")
    with pytest.raises(cm.QueryError, match="time_limit is '3'; expected seconds above 0"):
        cm.check(asia, cm.map_query(asia, ["lung"], proof=True), time_limit="3")
    for learn in (cm.learn.hclt, cm.learn.LearnSPN().fit):
        with pytest.raises(cm.ParseError, match=r"absent\.csv: cannot be read: No such file"):
            learn("absent.csv")
    with pytest.raises(cm.QueryError, match=r"a BayesianNetwork is no posterior; cm\.condition"):
        cm.forecast(asia)


class _Thing:
    pass


ODD = [True, -1, 1.5, float("nan"), float("inf"), 10**400, -(10**400), "1", "", b"x", [1], {"a": 1}, _Thing()]
ODD += [
    np.array("lung"),
    np.array([1, 2]),
    np.bool_(True),
    pd.NA,
    pd.Series([1, 2]),
    pd.DataFrame({"xray": ["yes"] * 3}),
]
PLACES = {
    "marginals": (("variables", "evidence", "workers", "virtual_evidence", "time_limit", "max_memory"), {}),
    "sample": (("n", "variables", "evidence", "rng", "as_frame", "time_limit", "max_memory"), {"n": 2}),
    "log_evidence": (("evidence", "workers", "virtual_evidence", "time_limit"), {}),
    "log_evidence_bounds": (("evidence", "i_bound", "time_limit"), {}),
    "log_likelihood": (("rows",), {}),
    "explain": (("variables", "evidence", "n_entries", "rng", "answer"), {"variables": ["lung"], "n_entries": 0}),
    "condition": (("variables", "evidence", "max_edges", "workers", "device", "solver"), {}),
    "check": (("proof", "time_limit", "max_memory"), {"proof": None}),
}


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, (all_of, _) in PLACES.items() for place in all_of]
)
def test_odd_values_at_every_place_end_in_a_sentence(asia, name, place):
    for value in ODD:
        with contextlib.suppress(cm.CertimapError):
            getattr(cm, name)(asia, **{**PLACES[name][1], place: value})
    for value in (ODD[-1], ODD[-2]):
        if place not in ("rows", "variables"):
            with pytest.raises(cm.CertimapError) as caught:
                getattr(cm, name)(asia, **{**PLACES[name][1], place: value})
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["epsilon", "delta", "rng"])
def test_odd_values_of_a_forecast(asia, place):
    posterior = cm.condition(asia, ["lung"])
    for value in [*ODD, None]:
        with contextlib.suppress(cm.CertimapError):
            cm.forecast(posterior, **{place: value})
    with pytest.raises(cm.QueryError, match="is no posterior"):
        cm.estimate_lipschitz(asia, {})


@pytest.mark.parametrize("name", ["chow_liu", "clt_mixture", "learnspn", "mixture", "hclt", "region_graph"])
@pytest.mark.parametrize("place", ["smoothing", "domain", "kinds", "time_limit", "progress", "valid"])
def test_odd_values_of_learners(name, place):
    learn, frame = getattr(cm.learn, name), FRAME.astype("int64")
    for value in [*ODD, FRAME.iloc[:0]]:
        if type(value) in (int, float, str, _Thing, bytes) or place == "valid":
            with contextlib.suppress(cm.CertimapError):
                learn(frame, **{place: value})
    for value in ("x", _Thing()):
        with pytest.raises(DataError):
            learn(frame, **{place: value})
    with pytest.raises(DataError, match=f"takes no {place + 's'!r}; did you mean '{place}'"):
        learn(frame, **{place + "s": 1})


def test_numbers_whose_squares_overflow_are_not_learned():
    with pytest.raises(DataError, match=r"column 'a' holds a number of size 3e\+201; expected at most 1e\+150"):
        cm.learn.mixture({"a": np.arange(31) * 1e200, "b": [0, 1] * 15 + [1]})


def test_keywords_of_the_other_functions(asia):
    posterior = cm.condition(asia, ["lung"])
    for ask, keyword, meant in (
        (cm.marginals, "timelimit", "time_limit"),
        (lambda m, **more: cm.sample(m, 2, **more), "seed", "rng"),
        (cm.log_evidence, "evidnce", "evidence"),
        (cm.log_evidence_bounds, "ibound", "i_bound"),
        (lambda m, **more: cm.forecast(posterior, **more), "eps", "epsilon"),
        (cm.condition, "maxedges", "max_edges"),
        (cm.explain, "random_state", "rng"),
        (lambda m, **more: cm.check(m, None, **more), "timeout", "time_limit"),
        (lambda m, **more: cm.read(ASIA, **more), "formt", "format"),
    ):
        with pytest.raises(cm.SolverError, match=f"takes no '{keyword}'; did you mean '{meant}'"):
            ask(asia, **{keyword: 1})


def test_an_answer_to_another_query_is_not_explained(asia):
    other = cm.map_query(asia, ["bronc"], {"xray": "yes"})
    with pytest.raises(cm.QueryError, match=r"is to a query of \['bronc'\], and the query is of \['lung'\]"):
        cm.explain(asia, ["lung"], {"xray": "yes"}, answer=other)
    for evidence in ({"xray": "no"}, {}, {"xray": "yes", "smoke": "no"}):
        with pytest.raises(cm.QueryError, match="with other evidence"):
            cm.explain(asia, ["bronc"], evidence, answer=other)
    assert cm.explain(asia, ["bronc"], pd.Series({"xray": "yes"}), answer=other).superseded is None


def test_no_draws_and_too_many(asia):
    assert {len(column) for column in cm.sample(asia, 0).values()} == {0}
    with pytest.raises(cm.TooLarge, match="the table of n=1000000000000 rows of 8 variables would take"):
        cm.sample(asia, 10**12)


@pytest.mark.parametrize("names", [["a", "b", "a"], [0, 1, 0]])
def test_doubled_columns_of_tables_to_fill(names):
    pytest.importorskip("sklearn")
    frame = pd.DataFrame([[0, 1, 0], [1, 0, None], [1, 1, 1]], columns=names)
    for fill in (cm.MapImputer("chow_liu").fit, cm.MapImputer("chow_liu").fit_transform):
        with pytest.raises(DataError, match=f"two columns named {names[0]!r}"):
            fill(frame)


def test_names_with_nul_and_odd_formats(asia, tmp_path):
    for call in (
        lambda: cm.io.write(asia, tmp_path / "a\0b.bif"),
        lambda: cm.check(asia, "a\0b"),
        lambda: cm.read("a\0b.bif"),
    ):
        with pytest.raises(CertimapError, match="embedded null"):
            call()
    for settings in ({"format": 5}, {"format": b"bif"}, {"encoding": 5}, {"encoding": "\0"}):
        with pytest.raises(ParseError, match="expected"):
            cm.read(ASIA, **settings)


def test_intervals_of_dependent_variables_end():
    means, covariance = np.zeros((1, 3)), np.array([[[1.0, 0.8, 0.3], [0.8, 2.0, 0.5], [0.3, 0.5, 1.5]]])
    nodes = [
        cm.LinearGaussian("0"),
        cm.LinearGaussian("1", ["0"], 0.0, [0.7]),
        cm.LinearGaussian("2", ["1"], 0.0, [1.0]),
    ]
    both, one = {"1": (0.0, 1.0), "2": (0.0, 2.0)}, {"1": (0.0, 1.0)}
    mixture, network = cm.GaussianMixture([1.0], means, covariance), cm.LinearGaussianNetwork(nodes)
    with pytest.raises(cm.QueryError, match=r"ln p\(e\) has no closed form"):
        cm.log_evidence(mixture, both)
    for model in (mixture, network):
        # The two sides never meet: the search ends where splitting no longer helps.
        result = cm.map_query(model, ["0"], both, epsilon=0.0)
        assert result.certificate.kind is cm.CertificateKind.NONE
        assert 0.0 < result.log_joint_upper_bound - result.log_joint < 0.01
        assert "proved: none" in str(cm.explain(model, ["0"], both))
        with pytest.raises(cm.QueryError, match="the evidence restricts '1', '2' to intervals; give values"):
            cm.sample(model, 2, both)
        with pytest.raises(cm.QueryError, match="the evidence restricts '1' to intervals; give values"):
            cm.sample(model, 2, one, ["0"])
        with pytest.raises(cm.QueryError, match="a WindowedNormals has no draws to forecast from"):
            cm.forecast(cm.condition(model, ["0"], one))
    with pytest.raises(cm.ModelError, match="a node is 'x'; expected a LinearGaussian"):
        cm.LinearGaussianNetwork({"x": nodes[0]})
