"""What the columns of a table become, and how the model that is learned keeps it."""

# pyright: basic

from __future__ import annotations

import datetime
from collections import Counter
from typing import Any

import numpy as np
import pytest

import certimap as cm
from certimap.core.domain import Categorical, Real
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.errors import DataError
from certimap.io.native import fingerprint
from certimap.learn.choice import learned

N = 60
HEADER = "id;name;age;spend;ok;city;since;salary;land;note\n"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    lines = []
    for k in range(N):
        ok = bool(rng.random() < 0.5)
        age = "*" if k % 9 == 0 else str(rng.integers(18, 80))
        spend = f"{(50 if ok else 5) + rng.normal():.2f}".replace(".", ",")
        day = datetime.date(2024, 1, 1) + datetime.timedelta(int(rng.integers(300)))
        city = f"c{min(int(rng.pareto(0.5)), 15)}"
        cells = [str(k + 7), f"n{k}", age, spend, "ja" if ok else "Nein", city, day.strftime("%d.%m.%Y"),
                 f"{rng.integers(1000, 90000):,}".replace(",", "."), "DE", ""]  # fmt: skip
        lines.append(";".join(cells))
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return path


def test_useless_columns_are_left_out_with_a_reason(table):
    ready = cm.learn.prepare(table, missing=["*"])
    assert list(ready) == ["age", "spend", "ok", "city", "salary"]
    reasons = {note.name: note.note.split(";")[0] for _, note in ready.left_out}
    assert reasons == {
        "id": "all different: it numbers the rows",
        "name": "all different: it names the rows",
        "since": "dates",
        "land": "one value only",
        "note": "no value",
    }
    assert "left out: id (all different" in repr(ready)
    assert ready["age"][0] is None
    assert ready["salary"].dtype == np.int64
    assert ready["spend"].dtype == np.float64


def test_kinds_overrule_and_names_are_checked(table):
    ready = cm.learn.prepare(
        table, kinds={"since": "day", "land": "categorical", "id": "real"}, columns=["since", "id", "land"]
    )
    assert list(ready) == ["id", "since", "land"]
    assert ready["since"].min() >= 19723  # 2024-01-01
    assert ready.kinds == {"since": "day", "id": "real", "land": "categorical"}
    with pytest.raises(DataError, match=r"drop names the column 'citi', .*did you mean 'city'"):
        cm.learn.prepare(table, drop=["citi"])
    with pytest.raises(DataError, match=r"column 'city' holds 'c.*'; its kind is day"):
        cm.learn.prepare(table, kinds={"city": "day"})
    with pytest.raises(DataError, match=r"no column is left: id .*numbers the rows"):
        cm.learn.prepare(table, drop=["age", "spend", "ok", "city", "salary"])
    assert list(cm.learn.prepare(table, columns=["id", "land"])) == ["id", "land"]


def test_rare_labels_are_pooled_and_later_ones_join_them(table):
    ready = cm.learn.prepare(table, missing=["*"], pool=5, columns=["city", "ok"])
    model = cm.learn.chow_liu(ready)
    assert "(other)" in vars(model.domain["city"])["states"]
    assert "labels of fewer than 5 rows" in ready.notes["city"]
    counts = Counter(line.split(";")[5] for line in table.read_text().splitlines()[1:])
    least = min(n for n in counts.values() if n > 1)
    edge = {city for city, n in counts.items() if n >= least}
    assert set(cm.learn.prepare(table, pool=least)["city"]) - {"(other)"} == edge
    new = {"city": ["somewhere"], "ok": ["ja"]}
    known = {"city": ["(other)"], "ok": ["ja"]}
    assert cm.learn.score_samples(model, new) == cm.learn.score_samples(model, known)
    with pytest.raises(DataError, match="'maybe' in column 'ok'"):
        cm.learn.score_samples(model, {"city": ["c0"], "ok": ["maybe"]})


def test_the_model_and_its_file_say_what_columns_became(table, tmp_path):
    model = cm.learn.mixture(cm.learn.prepare(table, missing=["*"], kinds={"since": "day"}), n_components=1, rng=0)
    notes = {note.name: note for note in model.source_columns}
    assert list(notes) == HEADER.strip().split(";")
    assert notes["age"].kind == "whole number"
    assert notes["age"].missing == 7
    assert notes["ok"].values == "Nein, ja"
    assert notes["since"].kind == "day"
    assert notes["since"].values.startswith("2024-")
    assert notes["id"].kind == "left out"
    assert "spend   number" in str(model.source_columns)
    model.write(tmp_path / "m.npz")
    assert cm.read(tmp_path / "m.npz").source_columns == model.source_columns


def test_learners_take_paths_frames_and_lists_of_rows_alike(table):
    pd = pytest.importorskip("pandas")
    rows = [{"a": k % 2, "b": "xyz"[k % 3], "c": k % 2 if k % 5 else None} for k in range(30)]
    frame = pd.DataFrame({"a": [r["a"] for r in rows], "b": [r["b"] for r in rows], "c": [r["c"] for r in rows]})
    found = [cm.learn.chow_liu(data) for data in (rows, frame, {n: list(frame[n]) for n in frame})]
    assert len({fingerprint(model) for model in found}) == 1
    assert cm.learn.learnspn(table, rng=0).domain.names == ("age", "spend", "ok", "city", "salary")
    frame["when"] = pd.to_datetime(["2024-01-01", None, "2024-02-01"] * 10)
    with pytest.raises(DataError, match="column 'when' holds dates"):
        cm.learn.chow_liu(frame)
    ready = cm.learn.prepare(frame, kinds={"when": "day"}, drop=["b"])
    assert ready["when"][:3].tolist()[::2] == [19723.0, 19754.0]
    assert cm.learn.mixture(ready, n_components=1, rng=0).domain["when"] == Real("when")


@pytest.mark.filterwarnings("error")  # no family of leaves gives the 0 no density
def test_whole_numbers_with_gaps_are_whole_in_frames_too():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [*range(25), None, 3], "b": [0, 1, 2] * 9})
    model = cm.learn.mixture(frame, n_components=1, rng=0)
    assert [note.kind for note in model.source_columns] == ["whole number", "states"]
    assert model.domain["b"] == Categorical("b", (0, 1, 2))


def test_the_best_of_a_few_methods_is_kept():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, 300)
    table = {"a": a, "b": (a + (rng.random(300) < 0.1)) % 3, "c": rng.integers(0, 2, 300)}
    found = cm.learn.best_of(table, ("mixture", "chow-liu"), rng=0)
    assert set(found.scores) == {"independence", "mixture", "chow-liu"}
    assert found.scores[found.method] == max(found.scores.values())
    assert found.scores[found.method] > found.scores["independence"] + 0.3
    assert fingerprint(learned(found.method, table, rng=0)) == fingerprint(found.model)
    assert [note.name for note in found.model.source_columns] == ["a", "b", "c"]
    hurried = cm.learn.best_of(table, ("mixture", "chow-liu"), rng=0, time_limit=1e-9)
    assert set(hurried.scores) == {"independence", "mixture"}
    assert hurried.method == "mixture"
    with pytest.raises(DataError, match="expected names of methods that suit the columns"):
        cm.learn.best_of(table, ("gaussian-mixture", "gaussian-mixture"))
    with pytest.raises(DataError, match="did you mean 'chow-liu'"):
        cm.learn.best_of(table, ("chow_liu",))


def test_rows_that_judge_are_not_learned_from():
    rng = np.random.default_rng(0)
    table = {"a": rng.integers(0, 6, 60), "b": rng.integers(0, 6, 60)}
    model, _, scores = cm.learn.best_of(table, ["chow-liu"], rng=0)
    assert scores["chow-liu"] < cm.learn.score_samples(model, table).mean() - 0.2


def test_held_out_rows_are_scored_beside_independence():
    a = np.arange(200) % 2
    found = cm.learn.best_of({"a": a, "b": a}, ["chow-liu"], rng=0)
    assert found.scores["chow-liu"] == pytest.approx(np.log(0.5), abs=0.1)
    assert found.scores["independence"] == pytest.approx(2 * np.log(0.5), abs=0.1)


def test_answers_of_whole_columns_are_whole_and_certified_as_such(tmp_path):
    rng = np.random.default_rng(1)
    size = rng.normal(0.0, 1.0, 400)
    age = [*np.rint(40 + 9 * size + rng.normal(0, 5, 400)).astype(int).tolist()[:-1], None]
    model = cm.learn.gaussian_mixture({"age": age, "size": size}, n_components=2, smoothing=0.1, rng=0)
    model.write(tmp_path / "m.npz")
    again = cm.read(tmp_path / "m.npz")
    assert fingerprint(again) == fingerprint(model)
    plain = GaussianMixture(np.exp(model.log_weights), model.means, model.covariances, ["age", "size"])
    for found in (cm.map_query(m, ["age"], {"size": 0.3}, rng=0) for m in (model, again)):
        best = cm.map_query(plain, ["age"], {"size": 0.3}, rng=0)
        logs = [float(x or 0.0) for x in (found.log_prob, best.log_prob, found.log_upper_bound)]
        answer: Any = found.assignment["age"]
        assert type(answer) is int
        assert logs[0] < logs[1] <= logs[2]
        density = cm.condition(plain, ["age"], {"size": 0.3}).log_prob(np.array([[float(answer)]]))[0]
        assert logs[0] == pytest.approx(density, abs=1e-9)
        certificate = found.certificate
        assert certificate.kind == "epsilon"
        assert 1e-4 < 1 - np.exp(logs[0] - logs[1]) < certificate.epsilon <= 0.01
    proved = cm.map_query(model, ["age"], {"size": 0.3}, rng=0, proof=True)
    assert proved.proof is None
    assert "rounded" in str(proved.no_proof)
