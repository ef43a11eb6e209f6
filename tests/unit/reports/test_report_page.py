"""The report page: what it says, that nothing escapes into it, and that it needs nothing from elsewhere."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest

import certimap as cm
from certimap.ask.replay import asked
from certimap.cli.main import main
from certimap.errors import ParseError
from certimap.explanations.reports import MAX_ANSWERS, report_page
from certimap.explanations.reports.page import result_of

EVIL = "<script>alert('x')</script>&\"</title>"
VOID = {"meta", "input", "br", "hr", "link", "img"}


class Outline(HTMLParser):
    """Checks that tags close in order, and keeps what stands in the page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["script"]:
            self.text.append(data)


def network(name="rain", labels=("no", "yes")):
    tables = {name: [0.8, 0.2], "wet": np.array([[0.9, 0.1], [0.2, 0.8]])}
    return cm.BayesianNetwork.from_cpts({name: labels, "wet": ["no", "yes"]}, {"wet": [name]}, tables)


def record(model, evidence, **settings):
    result = cm.map_query(model, None, evidence, rng=3, **settings)
    data = json.loads(result.to_json())
    return result, data | {
        "asked": asked(model, None, evidence, settings, file="rain.bif"),
        "history": result.history_columns(),
    }


@pytest.fixture
def written(tmp_path):
    def write(held, name="answer.json"):
        path = tmp_path / name
        path.write_text(json.dumps(held))
        return path

    return write


def test_a_page_says_question_answer_proof_and_how_to_replay(examples, tmp_path):
    file, page = tmp_path / "answer.json", tmp_path / "page.html"
    model = str(examples / "asia.bif")
    given = ["solve", model, "-e", "xray=yes", "-q", "lung,bronc", "--top-k", "2", "--rng", "7", "-o", str(file)]
    assert main(given) == 0
    assert main(["report", str(file), "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    outline = Outline(text)
    assert outline.open == []
    said = " ".join(outline.text)
    held = json.loads(file.read_text())
    assert "no other assignment is more probable" in said
    assert all(
        part in said for part in ("lung, bronc", "xray", f"certimap replay {file} {model}", "Bounds over time")
    )
    assert f"{held['log_prob']:.6f}" in said
    assert held["asked"]["model"] in said
    assert ("html", {"lang": "en"}) in outline.tags
    assert len(text) < 5_000_000


def test_a_record_turns_back_into_its_result():
    result, data = record(network(), {"wet": "yes"}, solver="pac")
    again = result_of(data, "x")
    assert json.loads(again.to_json()) == json.loads(result.to_json())
    assert again.history_columns() == result.history_columns()


def test_a_page_shows_constraints(tmp_path):
    rule = cm.Never({EVIL: "no"})
    result, data = record(network(EVIL), {}, constraints=[rule])
    assert result_of(data, "x").constraints == result.constraints == (rule,)
    (tmp_path / "r.json").write_text(json.dumps(data))
    page = report_page([tmp_path / "r.json"])
    text = Outline(page).text
    assert repr(rule) in text
    assert EVIL not in page
    assert "with nothing observed?" in " ".join(text)


def test_names_and_labels_cannot_break_out(written):
    model = network(EVIL, (EVIL, "</script><img src=x onerror=alert(1)>"))
    path = written(record(model, {EVIL: EVIL}, solver="exhaustive")[1])
    outline = Outline(report_page([path]))
    assert outline.open == []
    assert sum(tag == "script" for tag, _ in outline.tags) == 3
    assert not any(tag == "img" for tag, _ in outline.tags)
    assert EVIL in "".join(outline.text)
    assert not any(key.startswith("on") for _, attributes in outline.tags for key in attributes)


def test_nothing_is_loaded_from_elsewhere(written):
    page = report_page([written(record(network(), {})[1])])
    assert not any(key in ("src", "href") for _, a in Outline(page).tags for key in a)
    assert "default-src 'none'" in page
    elsewhere = set(re.findall(r"https?://[^\s\"']+", page))
    assert elsewhere == {"https://www.chartjs.org", "https://github.com/kurkle/color#readme"}  # in licence lines


def test_several_answers_and_failures_have_sections_and_links(written):
    failed = {"label": "2", "error": "ImpossibleEvidence", "message": "the evidence has probability 0"}
    good = record(network(), {"wet": "yes"})[1]
    outline = Outline(report_page([written([good, failed]), written(good, "other.json")]))
    targets = [a["href"][1:] for tag, a in outline.tags if tag == "a"]
    ids = {a["id"] for _, a in outline.tags if "id" in a}
    assert len(targets) == 3
    assert set(targets) <= ids
    assert any("probability 0" in text for text in outline.text)


def test_every_input_and_chart_has_a_label(written):
    outline = Outline(report_page([written(record(network(), {}, solver="pac")[1])]))
    named = {a.get("for") for tag, a in outline.tags if tag == "label"}
    assert {a["id"] for tag, a in outline.tags if tag == "input"} <= named
    assert all(a.get("aria-label") for tag, a in outline.tags if tag == "canvas")


@pytest.mark.parametrize("key", ["log_prob", "pareto", "assignment", "n_draws", "seconds"])
def test_a_damaged_result_is_one_sentence(written, tmp_path, capsys, key):
    data = record(network(), {})[1]
    for broken in ({k: v for k, v in data.items() if k != key}, data | {key: "wheel"}):
        assert main(["report", str(written(broken)), "-o", str(tmp_path / "page.html")]) == 2
        assert "damaged result" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_too_many_answers_are_refused(written):
    good = record(network(), {})[1]
    with pytest.raises(cm.QueryError, match=str(MAX_ANSWERS + 1)):
        report_page([written([good] * (MAX_ANSWERS + 1))])


def test_the_history_keeps_its_ends_and_no_more_than_the_limit():
    result = cm.map_query(network(), None, {}, rng=0, solver="pac")
    moment = result.history[-1]
    many = [type(moment)(float(i), i, i, -1.0 - 1.0 / (i + 1), float("inf"), -0.5) for i in range(500)]
    result.history[:] = many
    columns = result.history_columns(limit=100)
    assert len(columns["seconds"]) <= 101
    assert (columns["n_draws"][0], columns["n_draws"][-1]) == (0, 499)
    assert set(columns["log_upper_bound"]) == {None}
    result.history[:] = [type(moment)(float(i), i, i, -1.0, 0.0, -0.5) for i in range(9)]
    assert result.history_columns()["n_draws"] == [0, 8]


def test_the_chart_library_is_the_one_that_was_published():
    held = files("certimap.explanations.reports")
    text = held.joinpath("chart.umd.min.js").read_bytes()
    assert hashlib.sha256(text).hexdigest() == "c17f2ce49fb9c71ef7fb39c03f868804ac5ab34730149976eebe6b7f807bef0c"
    assert "MIT License" in held.joinpath("chart.LICENSE.txt").read_text(encoding="utf-8")


def test_a_page_shows_why_and_what_is_proved_of_it(examples, tmp_path, written):
    file = tmp_path / "answer.json"
    given = [
        "solve",
        str(examples / "asia.bif"),
        "-e",
        "xray=yes,asia=no,dysp=yes",
        "-q",
        "lung,bronc",
        "--rng",
        "7",
    ]
    assert main([*given, "--explain", "-o", str(file)]) == 0
    page = report_page([file])
    said = " ".join("".join(Outline(page).text).split())
    assert "It is 1.371 times as probable as the next best, which has lung = no (proved)." in said
    for piece in ("xray lung = no proved", "asia the answer stays proved", "asia = yes lung = no proved"):
        assert piece.replace(" ", "") in said.replace(" ", "")
    assert "P(xray = no | either = no)" in said
    held = json.loads(file.read_text())
    held["explanation"]["superseded"] = held["assignment"]
    assert "The following explains that one." in report_page([written(held)])
    for spoil in ({"lead": {}}, {"removed": [{}]}, {"tolerances": 3}, {"log_odds_free": "x"}):
        with pytest.raises(ParseError, match="holds a damaged explanation; expected what"):
            report_page([written(held | {"explanation": held["explanation"] | spoil})])


def test_names_in_explanations_are_no_markup(written):
    model = network(EVIL, ("no", EVIL))
    result, held = record(model, {"wet": "yes"})
    held["explanation"] = result.explain(n_entries=2).beside()
    page = report_page([written(held)])
    assert Outline(page).open == []
    assert EVIL not in page


def test_what_nothing_rivals_is_said_so(written):
    held = record(network(), {"wet": "yes"})[1]
    some = {"removed": [], "changed": [], "log_odds_free": 0.0, "tolerances": [], "superseded": None}
    lead = {"nats": None, "runner_up": {"rain": "no"}, "kind": "exact"}
    assert "No other assignment is possible (proved)" in report_page(
        [written(held | {"explanation": some | {"lead": lead}})]
    )
    assert "There is no other assignment" in report_page([written(held | {"explanation": some | {"lead": None}})])
