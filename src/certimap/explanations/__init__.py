"""Why an answer is what it is: its lead, the evidence that it hangs on, and how far a table may move."""

from certimap.explanations.explanation import Explanation, Lead, Swing, Tolerance
from certimap.explanations.questions import explain

__all__ = ["Explanation", "Lead", "Swing", "Tolerance", "explain"]
