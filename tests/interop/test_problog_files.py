"""Programs of ProbLog: names, probabilities and proofs of the networks that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import certimap as cm

problog = pytest.importorskip("problog")
PROGRAM = (Path(__file__).parents[2] / "examples/calls.pl").read_text()


@pytest.mark.parametrize("suffix", ["net", "xdsl"])
def test_the_probabilities_are_those_of_the_program(tmp_path, suffix):
    from problog.program import PrologString
    from problog.tasks import bayesnet

    (tmp_path / "m.pl").write_text(PROGRAM)
    path, form = tmp_path / f"m.{suffix}", {"net": "hugin"}.get(suffix, suffix)
    bayesnet.main([str(tmp_path / "m.pl"), "--format", form, "-o", str(path)])
    model = cm.read(path)
    seen = {"calls(mary)": True, "calls(john)": False}
    told = "".join(f"evidence({atom},{str(state).lower()}). " for atom, state in seen.items())
    expected = problog.get_evaluatable().create_from(PrologString(PROGRAM + told)).evaluate()
    evidence = {atom: str(int(state)) for atom, state in seen.items()}
    for atom, probability in expected.items():
        if str(atom) not in seen:
            found = cm.marginals(model, str(atom), evidence)[str(atom)]["1"]
            assert found == pytest.approx(probability, abs=1e-12)
    result = cm.map_query(
        model, ["burglary", "earthquake", "calls(ann)"], evidence, epsilon=0, delta=0, proof=True
    )
    assert cm.check(model, result.proof).accepted


def test_the_example_is_what_problog_writes(tmp_path):
    from problog.tasks import bayesnet

    (tmp_path / "m.pl").write_text(PROGRAM)
    bayesnet.main([str(tmp_path / "m.pl"), "--format", "hugin", "-o", str(tmp_path / "m.net")])
    ours, theirs = cm.read("examples/calls.net"), cm.read(tmp_path / "m.net")
    assert sorted(ours.domain.names) == sorted(theirs.domain.names)
