"""Hostile models: small and valid ones on which careless arithmetic goes wrong, with the exact truth about each.

Parameters from 1e-2000 to 1e2000, entries of one table that no double holds together, evidence of thousands of
factors, exact and near ties, structural zeros beside what is almost zero. `make_case` makes the model of a seed,
`check_seed` puts it to every solver and compares everything that is said with 60-digit arithmetic; `certimap bench
hostile` does so for thousands of seeds.
"""

from certimap_lab.hostile.case import HostileCase
from certimap_lab.hostile.check import check_seed
from certimap_lab.hostile.families import FAMILIES, family_of, make_case
from certimap_lab.hostile.report import KINDS, CaseReport, Failure

__all__ = [
    "FAMILIES",
    "KINDS",
    "CaseReport",
    "Failure",
    "HostileCase",
    "check_seed",
    "family_of",
    "make_case",
]
