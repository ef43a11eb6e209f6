"""`certimap report`: a page that shows recorded answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from certimap.cli.options import argument


def report(
    results: Annotated[list[Path], argument(metavar="RESULT.json ...", help="What solve --json or -o wrote.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="Where to write the page.")
    ] = Path("report.html"),
) -> None:
    """Write a page that shows answers, what is proved about them, and how to make them again.

    The page is one file that needs no network: charts, a slider over the pairs (epsilon, delta), and tables.
    """
    from certimap.explanations.reports import report_page
    from certimap.io.files import write_text

    write_text(output, report_page(results))
    print(f"wrote {output}")
