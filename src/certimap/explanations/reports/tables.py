"""Tables of a report."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_MAX_ROWS = 400  # of a table of variables; the rest is counted


def table(caption: str, head: Sequence[str] | None, rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table whose first column heads its rows; it scrolls by keyboard where it is too wide or long."""
    held = list(rows)
    more = (
        f"<p>and {len(held) - _MAX_ROWS:,} more, which the result file holds</p>" if len(held) > _MAX_ROWS else ""
    )
    columns = "".join(f"<th scope='col'>{escaped(name)}</th>" for name in head or ())
    bodies = ((row[0], "".join(f"<td>{escaped(cell)}</td>" for cell in row[1:])) for row in held[:_MAX_ROWS])
    lines = "".join(f"<tr><th scope='row'>{escaped(name)}</th>{cells}</tr>" for name, cells in bodies)
    return (
        f"<div class='scroll' tabindex='0' role='group' aria-label='{escaped(caption)}'><table class='{kind}'>"
        f"<caption>{escaped(caption)}</caption>{f'<thead><tr>{columns}</tr></thead>' if head else ''}"
        f"<tbody>{lines}</tbody></table>{more}</div>"
    )


def escaped(text: object) -> str:
    """Escape text for HTML, including attribute values in quotes."""
    return html.escape(str(text), quote=True)
