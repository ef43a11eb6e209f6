"""Pages that show an answer, what is proved about it and where it came from, to people without certimap."""

from certimap.explanations.reports.page import MAX_ANSWERS, report_page

__all__ = ["MAX_ANSWERS", "report_page"]
