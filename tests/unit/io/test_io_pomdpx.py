"""PomdpX: the chance parts, in two slices."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm

POMDPX = """<pomdpx version="0.1" id="rockSample"><Discount>0.95</Discount>
<Variable><StateVar vnamePrev="rover_0" vnameCurr="rover_1" fullyObs="true"><NumValues>3</NumValues></StateVar>
<StateVar vnamePrev="rock_0" vnameCurr="rock_1"><ValueEnum>good bad</ValueEnum></StateVar>
<ObsVar vname="obs_sensor"><ValueEnum>ogood obad</ValueEnum></ObsVar>
<ActionVar vname="action_rover"><ValueEnum>amw ame ac as</ValueEnum></ActionVar>
<RewardVar vname="reward_rover"/></Variable>
<InitialStateBelief><CondProb><Var>rover_0</Var><Parent>null</Parent><Parameter type="TBL"><Entry>
<Instance>-</Instance><ProbTable>0.0 1.0 0.0</ProbTable></Entry></Parameter></CondProb>
<CondProb><Var>rock_0</Var><Parent>null</Parent><Parameter type="TBL"><Entry><Instance>-</Instance>
<ProbTable>uniform</ProbTable></Entry></Parameter></CondProb></InitialStateBelief>
<StateTransitionFunction><CondProb><Var>rover_1</Var><Parent>action_rover rover_0</Parent><Parameter type="TBL">
<Entry><Instance>* s2 -</Instance><ProbTable>0 0 1</ProbTable></Entry>
<Entry><Instance>amw s0 s0</Instance><ProbTable>1.0</ProbTable></Entry><Entry><Instance>amw s1 s0</Instance>
<ProbTable>1.0</ProbTable></Entry>
<Entry><Instance>ame s0 s1</Instance><ProbTable>1.0</ProbTable></Entry><Entry><Instance>ame s1 s2</Instance>
<ProbTable>1.0</ProbTable></Entry>
<Entry><Instance>ac - -</Instance><ProbTable>identity</ProbTable></Entry><Entry><Instance>as s0 -</Instance>
<ProbTable>1 0 0</ProbTable></Entry><Entry><Instance>as s1 s2</Instance><ProbTable>1.0</ProbTable></Entry>
</Parameter></CondProb>
<CondProb><Var>rock_1</Var><Parent>rock_0</Parent><Parameter><Entry><Instance>- -</Instance>
<ProbTable>1 0 .5 .5</ProbTable></Entry></Parameter></CondProb></StateTransitionFunction>
<ObsFunction><CondProb><Var>obs_sensor</Var><Parent>rover_1 rock_1</Parent><Parameter type="TBL"><Entry>
<Instance>* * -</Instance><ProbTable>uniform</ProbTable></Entry><Entry><Instance>s0 - -</Instance>
<ProbTable>1 0 0 1</ProbTable></Entry></Parameter></CondProb></ObsFunction>
<RewardFunction/></pomdpx>
"""


def read_text(tmp_path, text, suffix="pomdpx"):
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    return cm.read(path)


def test_entries_name_states_and_later_ones_overrule(tmp_path):
    with pytest.warns(UserWarning, match="actions are read as equally probable"):
        network = read_text(tmp_path, POMDPX)
    by_name = {network.domain.names[f.scope[-1]]: f.table for f in network.factors}
    assert np.array_equal(by_name["rover_0"], [0, 1, 0])
    assert np.array_equal(by_name["action_rover"], [0.25] * 4)
    amw, ame, ac, away = by_name["rover_1"]
    assert np.array_equal(ac, np.eye(3))
    assert np.array_equal(amw, [[1, 0, 0], [1, 0, 0], [0, 0, 1]])
    assert np.array_equal(ame, [[0, 1, 0], [0, 0, 1], [0, 0, 1]])
    assert np.array_equal(away, [[1, 0, 0], [0, 0, 1], [0, 0, 1]])
    assert np.array_equal(by_name["rock_1"], [[1, 0], [0.5, 0.5]])
    assert np.array_equal(by_name["obs_sensor"][0], np.eye(2))
    assert np.array_equal(by_name["obs_sensor"][1:], np.full((2, 2, 2), 0.5))
    assert network.domain["rock_0"].states == ("good", "bad")


def test_xml_is_read_by_its_outermost_element(tmp_path):
    with pytest.warns(UserWarning, match="equally probable"):
        assert len(read_text(tmp_path, POMDPX, "xml").domain) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POMDPX.replace('type="TBL"', 'type="DD"', 1), "'rover_0' is given by the type 'DD'"),
        (POMDPX.replace("0.0 1.0 0.0", "0.0 1.0"), "1 states and 2 numbers"),
        (POMDPX.replace("<Instance>amw s0 s0", "<Instance>amw s0"), "2 states and 1 numbers; expected 3"),
        (POMDPX.replace("amw s0 s0", "amw s0 sx"), "'sx' is no state"),
        (POMDPX.replace("0.0 1.0 0.0", "0.0 1e400 0.0"), "a number above 1"),
        (POMDPX.replace("amw s0 s0", "amw s0 s1").replace("1.0<", ".5<"), "adds to 0.5"),
        ("<pomdpx/>", "<Variable>"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*equally probable")
def test_what_is_refused_is_named(tmp_path, text, message):
    with pytest.raises(cm.ParseError, match=message):
        read_text(tmp_path, text)
