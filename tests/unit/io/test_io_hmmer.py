"""Profiles of HMMER: every path of match, insert and silent delete states is counted."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest

import certimap as cm

HMM = """HMMER3/f [3.1b2 | February 2015]
NAME  toy
LENG  2
ALPH  DNA
RF    no
HMM          A        C        G        T
            m->m     m->i     m->d     i->m     i->i     d->m     d->d
  COMPO   1.38629  1.38629  1.38629  1.38629
          1.38629  1.38629  1.38629  1.38629
          0.35667  1.60944  2.30259  0.69315  0.69315  0.00000        *
      1   0.22314  2.70805  2.70805  2.70805      1 a - - -
          1.38629  1.38629  1.38629  1.38629
          0.22314  2.30259  2.30259  0.91629  0.51083  0.35667  1.20397
      2   2.70805  0.22314  2.70805  2.70805      2 c - - -
          1.38629  1.38629  1.38629  1.38629
          0.10536  2.30259        *  0.10536  2.30259  0.00000        *
//
"""
MOVES = [(0.7, 0.2, 0.1, 0.5, 0.5, 1, 0), (0.8, 0.1, 0.1, 0.4, 0.6, 0.7, 0.3), (0.9, 0.1, 0, 0.9, 0.1, 1, 0)]


def read_text(tmp_path, text):
    path = tmp_path / "m.hmm"
    path.write_text(text)
    return cm.read(path)


def probability(sequence):
    """Return p(sequence) by recursion over the states of the profile, delete states included."""

    @cache
    def rest(kind, k, i):
        mm, mi, md, im, ii, dm, dd = MOVES[k]
        to_match, to_insert, to_delete = {"M": (mm, mi, md), "I": (im, ii, 0), "D": (dm, 0, dd)}[kind]
        left = len(sequence) - i
        if k == 2:
            total = to_match * (left == 0)
        else:
            wanted = "AC"[k]
            total = to_match * (0.8 if sequence[i] == wanted else 0.2 / 3) * rest("M", k + 1, i + 1) if left else 0
            total += to_delete * rest("D", k + 1, i) if to_delete else 0
        return total + (to_insert * 0.25 * rest("I", k, i + 1) if left and to_insert else 0)

    return rest("M", 0, 0)


@pytest.mark.parametrize("sequence", ["AC", "", "C", "AAC", "GTTA"])
def test_all_paths_are_summed(tmp_path, sequence):
    model = cm.unroll(read_text(tmp_path, HMM), 5)
    evidence = {f"symbol[{i}]": symbol for i, symbol in enumerate(sequence.ljust(5, "-"))}
    assert np.isclose(cm.log_evidence(model, evidence), math.log(probability(sequence)), atol=1e-4)


def test_the_states_of_the_best_path(tmp_path):
    model = read_text(tmp_path, HMM)
    assert model.domain["state[0]"].states == ("M1", "M2", "end", "I0", "I1", "I2")
    assert len(model.domain) == 6
    states = [f"state[{i}]" for i in range(3)]
    answer = cm.map_query(model, states, {"symbol[0]": "A", "symbol[1]": "C", "symbol[2]": "-"}, epsilon=0)
    assert list(answer.assignment.values()) == ["M1", "M2", "end"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HMM.replace("HMMER3/f", "HMMER2.0"), "no profile of HMMER 3"),
        (HMM + HMM, "no profile of HMMER 3"),
        (HMM.replace("//", ""), "no profile of HMMER 3"),
        ("", "no profile of HMMER 3"),
        ("HMMER3/f\nHMM A\n//", "no profile of HMMER 3"),
        (
            HMM.replace("  0.22314  2.30259  2.30259", "  0.22314  2.30259"),
            "a line that its place does not expect",
        ),
        (HMM.replace("0.35667  1.60944", "9.35667  1.60944"), "a line that its place does not expect"),
        (HMM.replace("      2   2.70805", "      3   2.70805"), "a line that its place does not expect"),
        (HMM.replace("2.70805      1 a", "x           1 a"), "a line that its place does not expect"),
        (HMM.replace("A        C        G", "A        A        G"), "doubled"),
    ],
)
def test_what_is_refused_is_named(tmp_path, text, message):
    with pytest.raises(cm.ParseError, match=message) as caught:
        read_text(tmp_path, text)
    assert len(str(caught.value).splitlines()) == 1
