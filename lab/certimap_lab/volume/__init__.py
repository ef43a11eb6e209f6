"""Truth at volume: seeded queries of every kind, answered by every solver and judged by enumeration.

`make_case` makes the query of a number; `judge` answers it and compares what is said with the truth, known by
enumeration (for densities, by where their peaks were put); `loosened` makes one formula of
`certimap.certify.bounds` looser on purpose, which the judgement has to show. `certimap bench truth` does so
for hundreds of thousands.
"""

from certimap_lab.volume.case import Truth, VolumeCase
from certimap_lab.volume.families import FAMILIES, family_of, make_case
from certimap_lab.volume.judge import LEVELS, OUTCOMES, Verdict, answer, judge
from certimap_lab.volume.loosened import LOOSENED, loosened

__all__ = [
    "FAMILIES",
    "LEVELS",
    "LOOSENED",
    "OUTCOMES",
    "Truth",
    "Verdict",
    "VolumeCase",
    "answer",
    "family_of",
    "judge",
    "loosened",
    "make_case",
]
