"""HTML pages that show an answer, its certificate and its origin to readers without certimap."""

from certimap.explanations.reports.page import MAX_ANSWERS, report_page

__all__ = ["MAX_ANSWERS", "report_page"]
