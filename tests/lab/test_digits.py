"""The table of `certimap bench digits`, with a model that is learned in no time."""

import pytest

from certimap.learn import RegionGraphCircuit
from certimap_lab.bench import digits
from certimap_lab.bench.records import BenchError


def test_a_line_per_model_and_number_of_levels(monkeypatch):
    def make(domain, seed):
        return RegionGraphCircuit(2, max_steps=2, domain=domain, random_state=seed)

    monkeypatch.setitem(digits.ESTIMATORS, "small", make)
    lines = []
    table = digits.run_digits(digits.DigitsPlan(("small",), (2,), 2, 0.01, 30.0, 0), lines.append)
    assert table.rows[0][:2] == ["small", "2"]
    assert table.rows[0][5] == "2 of 2"
    assert len(lines) == 3


@pytest.mark.parametrize(("methods", "levels"), [(("hclt",), (4,)), (("quad-32",), (18,))])
def test_what_is_unknown_is_refused(methods, levels):
    with pytest.raises(BenchError, match=r"'hclt' is no method|18 is no number of grey levels"):
        digits.DigitsPlan(methods, levels, 1, 0.01, 1.0, 0)
