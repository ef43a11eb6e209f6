"""Explains an answer: its lead, the evidence on which it depends, and the tolerances of table entries."""

from certimap.explanations.questions import Explanation, Lead, Swing, Tolerance, explain

__all__ = ["Explanation", "Lead", "Swing", "Tolerance", "explain"]
