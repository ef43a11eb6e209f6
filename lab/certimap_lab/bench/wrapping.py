"""Lines of pages that benchmarks write: prose, pictures and commands within 115 columns, tables as they are."""

from __future__ import annotations

import textwrap

WIDTH = 115
CODE = "    "


def wrapped(page: str) -> str:
    """Wrap the long lines of a Markdown page; a command goes on in the next line behind a backslash."""
    lines: list[str] = []
    for line in page.split("\n"):
        if len(line) <= WIDTH or line.startswith(("|", "#", "<")):
            lines.append(line)
        elif line.startswith(CODE):
            lines += _wrapped_command(line[len(CODE) :])
        else:
            lines += textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _wrapped_command(command: str) -> list[str]:
    r"""Break a command at spaces, and a long word behind a comma: a shell joins what a backslash parts."""
    room = WIDTH - len(CODE) - len(" \\")
    rows = [""]
    for word in command.split(" "):
        row = f"{rows[-1]} {word}" if rows[-1] else word
        if len(row) <= room:
            rows[-1] = row
            continue
        rows[-1] += " "
        rows.append("")
        for item in word.replace(",", ",\0").split("\0"):
            if len(rows[-1]) + len(item) > room:
                rows.append("")
            rows[-1] += item
    return [f"{CODE}{row}\\" for row in rows[:-1]] + [CODE + rows[-1]]
