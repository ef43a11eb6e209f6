"""Pages that benchmarks write keep within 115 columns, and their commands stay whole."""

from __future__ import annotations

import shlex

from certimap_lab.bench.wrapping import CODE, WIDTH, wrapped


def test_prose_and_commands_are_wrapped_and_tables_are_not():
    names = ",".join(f"dataset{i}" for i in range(40))
    command = f"certimap bench twenty --data {'x' * 60} --datasets {names} --time-limit 10 --solvers auto"
    table = "| " + "cell " * 40 + "|"
    page = wrapped(f"{'word ' * 60}\n\n{CODE}{command}\n\n{table}")
    lines = page.split("\n")
    assert all(len(line) <= WIDTH for line in lines if line != table)
    assert table in lines
    code = "\n".join(line[len(CODE) :] for line in lines if line.startswith(CODE))
    assert shlex.split(code.replace("\\\n", "")) == shlex.split(command)  # as a shell joins lines


def test_short_lines_stay():
    assert wrapped("a\n    certimap solve x\n| t |") == "a\n    certimap solve x\n| t |"
