"""Sequences as networks, against enumeration of their paths and segmentations."""

import itertools

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ModelError

RNG = np.random.default_rng(3)
K, M, T = 3, 4, 5
START, MOVE, EMIT = RNG.dirichlet(np.ones(K)), RNG.dirichlet(np.ones(K), K), RNG.dirichlet(np.ones(M), K)
MOVES = RNG.dirichlet(np.ones(K), (T - 1, K))
SCORES = RNG.normal(size=(T, K)) * 40.0
SEEN = [0, 3, 1, 2, 0]
SYMBOLS = {f"symbol{t}": s for t, s in enumerate(SEEN)}


def best(weights, n=1):
    return sorted(weights.items(), key=lambda pair: -pair[1])[:n]


def path_weights(start, moves, emits):
    """Log weight of each path of states, from weights of each step."""
    with np.errstate(divide="ignore"):
        return {
            path: np.log(start[path[0]])
            + sum(np.log(moves[t - 1][path[t - 1], path[t]]) for t in range(1, len(path)))
            + sum(emits[t][path[t]] for t in range(len(path)))
            for path in itertools.product(range(len(start)), repeat=len(emits))
        }


def total(weights):
    return np.logaddexp.reduce(list(weights.values()))


def ask(model, variables=None, evidence=None, **options):
    result = cm.map_query(model, variables, evidence, epsilon=0, progress=False, **options)
    assert result.certificate.kind == "exact"
    return result


def states_of(assignment):
    return tuple(assignment.values())


class TestHiddenMarkovModels:
    def test_each_move_has_its_own_transition(self):
        model = cm.hidden_markov_model(START, MOVES, EMIT, T)
        weights = path_weights(START, MOVES, np.log(EMIT)[:, SEEN].T)
        result = ask(model, None, SYMBOLS)
        [(path, log_value)] = best(weights)
        assert states_of(result.assignment) == path
        assert result.log_joint == pytest.approx(log_value)
        assert cm.log_evidence(model, SYMBOLS) == pytest.approx(total(weights))

    def test_likelihoods_of_a_classifier(self):
        forbidden = MOVE.copy()
        forbidden[0, 2] = 0.0
        forbidden /= forbidden.sum(axis=1, keepdims=True)
        scores = SCORES.copy()
        scores[2, 1] = -np.inf
        model = cm.hidden_markov_model(START, forbidden, log_emission=scores)
        weights = path_weights(START, [forbidden] * (T - 1), scores)
        result = ask(model)
        [(path, log_value)] = best(weights)
        assert states_of(result.assignment) == path
        assert result.log_joint == pytest.approx(log_value, abs=1e-9)
        assert model.log_partition == pytest.approx(total(weights), abs=1e-9)

    def test_silent_states_are_summed_with_their_cycles(self):
        # State 1 and 3 emit nothing and lead to each other: a geometric series.
        move = np.array([[0.2, 0.5, 0.3, 0.0], [0.0, 0.1, 0.6, 0.3], [0.3, 0.4, 0.2, 0.1], [0.2, 0.5, 0.2, 0.1]])
        start, emit = np.array([0.3, 0.4, 0.1, 0.2]), np.array([[0.7, 0.3], [0, 0], [0.1, 0.9], [0, 0]])
        loud, quiet = [0, 2], [1, 3]
        series = sum(np.linalg.matrix_power(move[np.ix_(quiet, quiet)], n) for n in range(200))
        direct = move[np.ix_(loud, loud)] + move[np.ix_(loud, quiet)] @ series @ move[np.ix_(quiet, loud)]
        first = start[loud] + start[quiet] @ series @ move[np.ix_(quiet, loud)]
        seen = [0, 1, 1]
        weights = path_weights(first, [direct] * 2, np.log(emit[loud])[:, seen].T)
        model = cm.hidden_markov_model(start, move, emit, 3, states=["a", "x", "b", "y"], silent=["x", "y"])
        evidence = {f"symbol{t}": s for t, s in enumerate(seen)}
        assert cm.log_evidence(model, evidence) == pytest.approx(total(weights))
        assert model.domain["state0"].states == ("a", "b")
        scores = np.where(emit.T[seen] > 0, np.log(np.maximum(emit.T[seen], 1e-300)), -np.inf)
        soft = cm.hidden_markov_model(start, move, log_emission=scores, silent=[1, 3])
        assert soft.log_partition == pytest.approx(total(weights))

    def test_a_deletion_between_two_matches(self):
        move, emit = [[0.1, 0.3, 0.6], [0, 0, 1], [0, 0, 1]], [[0.7, 0.3], [0, 0], [0.2, 0.8]]
        with pytest.raises(ModelError, match="silent="):
            cm.hidden_markov_model([1, 0, 0], move, emit, 3)
        model = cm.hidden_markov_model([1, 0, 0], move, emit, 3, silent=[1])
        result = ask(model, None, {"symbol0": 0, "symbol1": 1, "symbol2": 1})
        assert np.exp(result.log_joint) == pytest.approx(0.7 * 0.9 * 0.8 * 0.8)

    @pytest.mark.parametrize("soft", [False, True])
    def test_durations_against_segmentations(self, soft):
        durations = np.array([[0.0, 0.6, 0.4], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
        emits = SCORES / 20.0 if soft else np.log(EMIT)[:, SEEN].T
        weights = {}
        for path in itertools.product(range(K), repeat=T):
            stays = [(k, len(list(run))) for k, run in itertools.groupby(path)]
            weight = START[stays[0][0]] * np.prod([durations[k, n - 1] if n <= 3 else 0.0 for k, n in stays[:-1]])
            weight *= durations[stays[-1][0], stays[-1][1] - 1 :].sum()  # the end cuts the last stay off
            for (a, _), (b, _) in itertools.pairwise(stays):
                weight *= MOVE[a, b] / (1.0 - MOVE[a, a])
            with np.errstate(divide="ignore"):
                weights[path] = np.log(weight) + sum(emits[t][k] for t, k in enumerate(path))
        given = {"log_emission": emits} if soft else {"emission": EMIT, "steps": T}
        model = cm.hidden_markov_model(START, MOVE, durations=durations, **given)
        seen = {} if soft else SYMBOLS
        result = ask(model, None, seen, top_k=4)
        for (assignment, _), (path, log_value) in zip(result.top, best(weights, 4), strict=True):
            assert states_of(assignment) == path
            full = ask(model, ["age0"], {**seen, **assignment})
            assert full.log_joint == pytest.approx(log_value)
        assert cm.log_evidence(model, seen) == pytest.approx(total(weights))

    def test_a_state_that_nothing_follows_is_never_left(self):
        model = cm.hidden_markov_model([1, 0], [[0.5, 0.5], [0, 1]], np.eye(2), 6, durations=[[0, 1], [0, 1]])
        assert states_of(ask(model, [f"state{t}" for t in range(6)]).assignment) == (0, 0, 1, 1, 1, 1)
        assert cm.log_evidence(model, {"state5": 1}) == pytest.approx(0.0, abs=1e-12)

    def test_labels_with_their_states_summed_out(self):
        rng = np.random.default_rng(11)
        n, steps, labels = 5, 4, ["a", "b", "b", "b", "a"]
        start, move, emit = rng.dirichlet(np.ones(n)), rng.dirichlet(np.ones(n), n), rng.dirichlet(np.ones(2), n)
        seen = [0, 1, 1, 0]
        model = cm.hidden_markov_model(start, move, emit, steps, labels=labels)
        evidence = {f"symbol{t}": s for t, s in enumerate(seen)}
        paths, sums = path_weights(start, [move] * (steps - 1), np.log(emit)[:, seen].T), {}
        for path, log_value in paths.items():
            key = tuple(labels[k] for k in path)
            sums[key] = np.logaddexp(sums.get(key, -np.inf), log_value)
        result = ask(model, None, evidence, top_k=5)
        assert [states_of(assignment) for assignment, _ in result.top] == [key for key, _ in best(sums, 5)]
        assert result.log_joint == pytest.approx(best(sums)[0][1])
        viterbi = tuple(labels[k] for k in best(paths)[0][0])
        assert viterbi != states_of(result.assignment)  # what this question is for
        known = ask(model, None, {**evidence, "label1": "a"})
        [(key, log_value)] = best({key: value for key, value in sums.items() if key[1] == "a"})
        assert (states_of(known.assignment), known.log_joint) == (key[:1] + key[2:], pytest.approx(log_value))
        some = [cm.AtMost(1, [f"label{t}" for t in range(steps)], "b")]
        bounded = ask(model, None, evidence, constraints=some)
        [(key, log_value)] = best({key: value for key, value in sums.items() if key.count("b") <= 1})
        assert (states_of(bounded.assignment), bounded.log_joint) == (key, pytest.approx(log_value))

    def test_hidden_names_survive_a_file(self, tmp_path):
        model = cm.hidden_markov_model(START, MOVE, log_emission=SCORES, labels="aab")
        model.write(tmp_path / "chain.npz")
        again = cm.read(tmp_path / "chain.npz")
        assert again.hidden == model.hidden
        assert ask(again).assignment == ask(model).assignment

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"emission": EMIT}, "expected one of emission"),
            ({"emission": None, "log_emission": None}, "expected one of emission"),
            ({"steps": T + 1}, "for 6 steps"),
            ({"log_emission": np.full((T, K), np.nan)}, "NaN"),
            ({"start": [0.5, -0.5, 1.0]}, "has the entry -0.5"),
            ({"transition": MOVES[1:]}, r"\(3, 3, 3\)"),
            ({"transition": [[1, 0, 0], [0, 0, 0], [0, 0, 1]]}, "row 1 of transition adds to 0"),
            ({"transition": [[1, 0, 0], [0, 0.5, 0], [0, 0, 1]]}, "adds to 0.5"),
            ({"durations": np.ones((2, 2))}, r"expected \(3, D\)"),
            ({"durations": np.ones((3, 2))}, "row 0 of durations is no dist"),
            ({"labels": "ab"}, "2 labels are named and 3"),
            ({"silent": ["d"]}, "silent is"),
            ({"silent": [1]}, "silent state among"),
        ],
    )
    def test_what_is_refused(self, change, words):
        given = {"start": START, "transition": MOVE, "log_emission": SCORES} | change
        with pytest.raises(ModelError, match=words):
            cm.hidden_markov_model(**given)

    def test_silent_states_that_are_never_left(self):
        emit = [[0.5, 0.5], [0, 0], [0, 0]]
        with pytest.raises(ModelError, match="never left"):
            cm.hidden_markov_model([1, 0, 0], [[0.5, 0.5, 0], [0, 0, 1], [0, 1, 0]], emit, 3, silent=[1, 2])
        with pytest.raises(ModelError, match="start may be silent"):
            cm.hidden_markov_model([0, 1, 0], np.ones((2, 3, 3)) / 3, emit, 3, silent=[1, 2])
        with pytest.raises(ModelError, match="do not go together"):
            cm.hidden_markov_model(
                [1, 0, 0], np.ones((3, 3)) / 3, emit, 3, silent=[1, 2], durations=np.ones((3, 1))
            )


class TestLinearChains:
    @pytest.mark.parametrize("per_move", [False, True])
    def test_scores_of_any_size(self, per_move):
        pairwise = RNG.normal(size=(T - 1, K, K) if per_move else (K, K)) * 30.0
        pairwise[..., 0, 1] = -np.inf
        moves = pairwise if per_move else [pairwise] * (T - 1)
        model = cm.linear_chain(SCORES, pairwise, states="abc", names="tag{}")
        weights = path_weights(np.ones(K), np.exp(moves), SCORES)
        result = ask(model)
        [(path, log_value)] = best(weights)
        assert result.assignment == {f"tag{t}": "abc"[k] for t, k in enumerate(path)}
        assert result.log_joint == pytest.approx(log_value)
        assert model.log_partition == pytest.approx(total(weights))

    def test_what_is_refused(self):
        with pytest.raises(ModelError, match=r"\(2, 2\)"):
            cm.linear_chain(SCORES, np.zeros((2, 2)))
        with pytest.raises(ModelError, match="\\+inf"):
            cm.linear_chain(SCORES, np.full((K, K), np.inf))
        with pytest.raises(ModelError, match="in rows of equal length"):
            cm.linear_chain([[1.0], [1.0, 2.0]], np.zeros((2, 2)))
