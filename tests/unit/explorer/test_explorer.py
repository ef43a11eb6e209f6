"""The explorer's server without a browser: what it answers, what it refuses, and that its work ends."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import pytest

import certimap as cm
from certimap.ask.replay import replay
from certimap.cli.main import main

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

ASKED = {"query": None, "evidence": {}, "do": {}, "constraints": [], "top_k": 1, "epsilon": 0.01, "time_limit": 20}
PATIENCE = 120.0  # seconds, on the busiest machine


class Client:
    """Asks one explorer, as the page of one tab does."""

    def __init__(self, served, tab="a"):
        self.served, self.tab = served, tab

    def send(self, place, body=None, **headers):
        parts = urlsplit(self.served.url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", parts.path + place, data, headers)
        return connection.getresponse()

    def begin(self, kind="answer", **more):
        return self.send(kind, {"tab": self.tab, **ASKED, **more})

    def ask(self, kind="answer", **more):
        return events_of(self.begin(kind, **more))

    def post(self, place, **body):
        response = self.send(place, body)
        return response.status, response.read().decode()


def events_of(response):
    """Return pairs of an event's name and its data."""
    text = response.read().decode()
    assert response.status == 200, text
    parts = [part.strip().split("\n") for part in text.split("\n\n") if part.strip()]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def workers():
    return [thread for thread in threading.enumerate() if thread.name == "certimap explorer"]


def until(holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def served(examples):
    path = str(examples / "asia.bif")
    shown = cm.explore(cm.read(path), path=path)
    yield shown
    shown.stop()
    until(lambda: not workers())


def hard():
    """A frustrated grid that no search settles within the patience of a test."""
    rng, side = np.random.default_rng(5), 40
    domain = cm.Domain([cm.Categorical(f"x{i}", (0, 1, 2)) for i in range(side * side)])
    factors = []
    for i in range(side * side):
        pairs = [i + step for step, inside in ((1, (i + 1) % side), (side, i + side < side * side)) if inside]
        factors += [cm.Factor([i, j], np.exp(3.0 * rng.normal(size=(3, 3)))) for j in pairs]
    return cm.MarkovNetwork(domain, factors)


def test_an_answer_is_that_of_map_query_with_marginals_beside(served):
    found = dict(Client(served).ask(evidence={"xray": {"state": 0}}, top_k=3))
    assert [name for name, _ in Client(served).ask() if name != "progress"] == [
        "asked",
        "answer",
        "marginals",
        "histograms",
    ]
    model = cm.read(served._path)
    label = model.domain["xray"].states[0]
    expected = cm.map_query(model, None, {"xray": label}, top_k=3, rng=0)
    told = found["answer"]
    assert {n: model.domain[n].states[k] for n, k in told["assignment"].items()} == expected.assignment
    assert told["low"] == expected.log_prob
    assert told["high"] == expected.log_upper_bound
    assert told["certified"]
    assert "no other assignment" in told["proved"]
    assert [value for _, value in told["top"]] == [value for _, value in expected.top]
    marginals = cm.marginals(model, None, {"xray": label})
    assert found["marginals"] == {name: list(row.values()) for name, row in marginals.items()}
    assert found["histograms"] == {}


QUESTIONS = [
    {"evidence": {"xray": {"state": 0}}, "query": ["lung", "bronc"], "top_k": 2},
    {"evidence": {"xray": {"likelihood": [1.0, 0.25]}, "dysp": {"states": [1]}}},
    {"do": {"smoke": 0}, "evidence": {"dysp": {"state": 0}}, "epsilon": 0.05},
    {
        "constraints": [{"kind": "Never", "states": {"lung": "no", "bronc": "no"}}],
        "evidence": {"dysp": {"state": 0}},
    },
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_question_as_text_gives_the_same_answer(served, question, tmp_path, monkeypatch, capsys):
    events = dict(Client(served).ask(**question))
    monkeypatch.chdir(tmp_path)
    space = {"print": lambda result: space.update(result=result)}
    exec(events["asked"]["python"], space)
    names = [(v.name, v.states) for v in cm.read(served._path).domain]
    told = {
        name: states[events["answer"]["assignment"][name]]
        for name, states in names
        if name in events["answer"]["assignment"]
    }
    assert space["result"].assignment == told
    assert space["result"].log_prob == events["answer"]["low"]
    *files, command = events["asked"]["shell"].splitlines()
    for line in files:
        subprocess.run(["sh", "-c", line], check=True)
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["log_prob"] == events["answer"]["low"]


def test_constraints_and_interventions_hold(served):
    cut, never = (dict(Client(served).ask(**question)) for question in QUESTIONS[2:])
    states = dict(json.loads(Client(served).send("model").read())["variables"])
    best = never["answer"]["assignment"]
    assert (states["lung"][best["lung"]], states["bronc"][best["bronc"]]) != ("no", "no")
    assert "satisfies the constraints" in never["answer"]["proved"]
    expected = cm.marginals(cm.read(served._path).do(smoke="yes"), ["asia"], {"dysp": "yes"})
    assert cut["marginals"]["asia"] == pytest.approx(list(expected["asia"].values()), rel=1e-12)


def test_explanations_and_next_tests(served):
    client = Client(served)
    ((name, told),) = client.ask("explain", evidence={"xray": {"state": 0}})
    assert name == "html"
    assert "times as probable as the next best" in told["html"]
    ((_, told),) = client.ask("next", query=["lung"])
    assert next(iter(cm.next_test(cm.read(served._path), ["lung"]))) in told["html"]
    ((name, told),) = client.ask("next")
    assert (name, "names no variable" in told["message"]) == ("refused", True)


def test_the_record_replays_and_the_report_shows_it(served):
    client = Client(served)
    status, told = client.post("record", tab="a")
    assert (status, json.loads(told)) == (400, {"error": "there is no answer to save yet; wait for one"})
    client.ask(evidence={"xray": {"state": 0}}, query=["lung"])
    record = json.loads(client.post("record", tab="a")[1])
    assert replay(cm.read(served._path), record).same
    report = client.post("report", tab="a")[1]
    assert report.startswith("<!DOCTYPE html>")
    assert "no other assignment is more probable" in report


def test_a_row_of_a_table_becomes_evidence(served):
    client, text = Client(served), "xray,dysp,age\nyes,,41\n,no,17\n"
    status, told = client.post("row", name="rows.csv", text=text, row=2)
    held = {"dysp": {"state": 1, "label": "no"}}
    assert (status, json.loads(told)) == (200, {"evidence": held, "rows": 2, "ignored": ["age"]})
    assert dict(client.ask(evidence=held))["answer"]["certified"]
    status, told = client.post("row", name="rows.csv", text=text, row=3)
    assert (status, json.loads(told)["error"]) == (400, "row 3 is not in the table; expected 1 to 2")


REFUSED = [
    (b"{", "expected a JSON object with tab, query"),
    ([], "the request is []; expected a JSON object"),
    ({**ASKED, "tab": "a", "more": 1}, "expected a JSON object with tab, query"),
    ({**ASKED, "tab": 3}, "tab is 3; expected text"),
    ({**ASKED, "tab": "a", "evidence": [1]}, "evidence is [1]; expected an object"),
    ({**ASKED, "tab": "a", "query": "lung"}, "query is 'lung'; expected null or a list"),
    ({**ASKED, "tab": "a", "epsilon": "0"}, "epsilon is '0'; expected a number"),
    ({**ASKED, "tab": "a", "evidence": {"lungs": {"state": 0}}}, "did you mean 'lung'?"),
    ({**ASKED, "tab": "a", "evidence": {"lung": {"state": 7}}}, "does not fit the variable 'lung'"),
    ({**ASKED, "tab": "a", "evidence": {"lung": 7}}, "does not fit the variable 'lung'"),
    ({**ASKED, "tab": "a", "do": {"lung": "yes"}}, "does not fit the variable 'lung'"),
    ({**ASKED, "tab": "a", "constraints": [{"kind": "Nevr"}]}, "did you mean 'Never'?"),
]


def test_malformed_requests_are_refused_in_a_sentence(served):
    for body, sentence in REFUSED:
        response = Client(served).send("answer", body)
        told = json.loads(response.read())["error"]
        assert (response.status, "\n" in told) == (400, False)
        assert sentence in told
    for more, sentence in (
        ({"top_k": 0}, "top_k is 0"),
        ({"query": ["lungs"]}, "'lung'"),
        ({"epsilon": 2}, "epsilon"),
    ):
        ((_, _), (name, told)) = Client(served).ask(**more)
        assert name == "refused"
        assert sentence in told["message"]


def test_strangers_are_refused(served):
    client = Client(served)
    assert client.send("").status == 200
    host = urlsplit(served.url).netloc
    assert client.send("", Origin=f"http://{host}").status == 200
    for headers in ({"Host": "example.org"}, {"Origin": "http://example.org"}, {"Origin": "null"}):
        response = client.send("model", **headers)
        assert response.status == 403
        assert json.loads(response.read())["error"].endswith("open the address that certimap printed")
    for path in ("/", "/model", f"/{'x' * 32}/model", "//model"):
        connection = http.client.HTTPConnection(host, timeout=PATIENCE)
        connection.request("GET", path)
        assert connection.getresponse().status == 403
    long = client.send("stop", b"{}", **{"Content-Length": "99000000"})
    assert long.status == 403
    assert client.send("%2e%2e/server.py").status == 404
    assert "default-src 'none'" in client.send("").headers["content-security-policy"]


def test_a_question_that_begins_ends_the_one_that_runs():
    served = cm.explore(hard())
    try:
        client = Client(served)
        slow = client.begin(epsilon=0.0, time_limit=1000)
        until(workers)
        waiting = [client.begin(epsilon=0.0, time_limit=1000) for _ in range(3)]
        quick = client.ask(query=["x0"], evidence={f"x{i}": {"state": 0} for i in range(1, 1600)})
        assert dict(quick)["answer"]["certified"], quick
        assert len(workers()) <= 1
        for response in (slow, *waiting):  # they have ended, with the bounds so far or before they began
            told = dict(events_of(response))
            assert "marginals" not in told
            if "answer" in told:
                assert not told["answer"]["certified"]
    finally:
        served.stop()
    until(lambda: not workers())


def test_stop_keeps_the_bounds_and_other_tabs_run_on():
    served = cm.explore(hard())
    try:
        one, other = Client(served), Client(served, "b")
        kept = other.begin(epsilon=0.0, time_limit=1000)
        response = one.begin(epsilon=0.0, time_limit=1000)
        lines = (
            line.removeprefix(b"data: ") for line in iter(response.readline, b"") if line.startswith(b"data: ")
        )
        assert next(told for told in map(json.loads, lines) if told.get("assignment"))["high"] > 0.0
        assert one.post("stop", tab="a")[0] == 200
        told = dict(events_of(response))
        assert "interrupted" in " ".join(told["answer"]["notes"])
        assert told["answer"]["low"] < told["answer"]["high"]
        assert len(told["answer"]["assignment"]) == 1600
        until(lambda: len(workers()) == 1)  # the other tab's
        kept.close()  # which nobody reads any longer
        until(lambda: not workers())
    finally:
        served.stop()


def test_numbers_have_histograms_and_intervals():
    mixture = cm.GaussianMixture([0.7, 0.3], [[0.0, 0.0], [4.0, 4.0]], [np.eye(2), np.eye(2)], ["x", "y"])
    served = cm.explore(mixture)
    try:
        client = Client(served)
        held = json.loads(client.send("model").read())
        assert held["variables"] == [["x", None], ["y", None]]
        assert held["edges"] == []
        found = dict(client.ask(evidence={"y": {"value": 4.0}}))
        assert found["answer"]["what"] == "density"
        assert found["answer"]["assignment"]["x"] == pytest.approx(4.0, abs=0.05)
        free = dict(client.ask())["histograms"]
        assert found["histograms"]["x"][0] == free["x"][0]
        assert sum(found["histograms"]["x"][1]) == pytest.approx(1.0)
        cut = dict(client.ask(query=["x"], evidence={"y": {"interval": [3.0, 5.0]}}))
        assert cut["answer"]["assignment"]["x"] == pytest.approx(4.0, abs=0.2)
    finally:
        served.stop()


def edges_of(model):
    served = cm.explore(model)
    held = json.loads(Client(served).send("model").read())
    served.stop()
    names = [name for name, _ in held["variables"]]
    return {(names[a], names[b]) for a, b in held["edges"]}, names


def test_edges_leave_hidden_variables_out():
    causes = {f"cause{i}": 0.4 for i in range(25)}
    states = {name: ["no", "yes"] for name in (*causes, "alarm", "call")}
    tables = {name: [0.9, 0.1] for name in causes} | {"call": [[0.9, 0.1], [0.2, 0.8]]}
    tables["alarm"] = cm.NoisyOr(causes, leak=0.01)
    network = cm.BayesianNetwork.from_cpts(states, {"alarm": list(causes), "call": "alarm"}, tables)
    assert network.hidden
    assert edges_of(network) == ({*((name, "alarm") for name in causes), ("alarm", "call")}, list(states))


def test_edges_of_other_networks():
    domain = cm.Domain([cm.Categorical(name, (0, 1)) for name in "abc"])
    factors = [cm.Factor(scope, np.ones((2, 2))) for scope in ([2, 0], [1, 2])]
    assert edges_of(cm.MarkovNetwork(domain, factors))[0] == {("a", "c"), ("b", "c")}
    switch = cm.BayesianNetwork.from_cpts({"s": [0, 1]}, {}, {"s": [0.5, 0.5]})
    nodes = [cm.LinearGaussian("x", ["s"], [0.0, 1.0]), cm.LinearGaussian("y", ["x"], 0.0, [1.0])]
    assert edges_of(cm.LinearGaussianNetwork(nodes, switch)) == ({("s", "x"), ("x", "y")}, ["s", "x", "y"])


def test_it_ends_and_frees_its_port(examples):
    served = cm.explore(cm.read(str(examples / "asia.bif")))
    assert served.url in served._repr_html_()
    assert served.url in repr(served)
    port = urlsplit(served.url).port
    with pytest.raises(cm.QueryError, match=f"port {port} cannot be used"):
        cm.explore(cm.read(str(examples / "asia.bif")), port=port)
    served.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("certimap explore")]
    again = cm.explore(cm.read(str(examples / "asia.bif")), port=port)
    again.stop()
    for wrong in (70000, -1, 0.5, "x"):
        with pytest.raises(cm.QueryError, match="expected a free port"):
            cm.explore(cm.read(str(examples / "asia.bif")), port=wrong)


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch, examples):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(cm.MissingDependency, match=r"pip install 'certimap\[explore\]'"):
        cm.explore(cm.read(str(examples / "asia.bif")))


def test_the_command_serves_until_ctrl_c(examples, tmp_path):
    command = [sys.executable, "-m", "certimap.cli", "explore", str(examples / "asia.bif"), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        url = process.stdout.readline().split()[-1]
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
        connection.request("GET", parts.path)
        assert b"certimap explorer" in connection.getresponse().read()
        process.send_signal(2)
        assert process.wait(PATIENCE) == 0
    assert list(tmp_path.iterdir()) == []
