"""The program that runs toulbar2 apart: reads a job, writes the best assignment and the dual bound.

It imports nothing of certimap, so that its memory limit is toulbar2's alone.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from typing import Any


def main(job_path: str, answer_path: str) -> None:
    """Solve one job; see `certimap.solvers.networks.toulbar2.costs_of` for its fields."""
    with open(job_path, encoding="utf-8") as file:
        job: dict[str, Any] = json.load(file)
    with contextlib.suppress(ImportError, ValueError, OSError):  # where the system can cap the address space
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(job["memory"]), int(job["memory"])))
    pytoulbar2: Any = importlib.import_module("pytoulbar2")  # an extra: types hold with and without it
    network: Any = pytoulbar2.CFN(ubinit=job["impossible"], resolution=job["digits"], verbose=-1)
    for i, size in enumerate(job["sizes"]):
        network.AddVariable(f"x{i}", [f"s{k}" for k in range(size)])
    for scope, costs in zip(job["scopes"], job["costs"], strict=True):
        network.AddFunction([f"x{i}" for i in scope], costs)
    found = network.Solve(timeLimit=job["seconds"])
    solution: list[int] | None = None if found is None else list(found[0])
    if solution is None:
        listed = network.GetSolutions()  # a limit may have ended the search after some were found
        solution = list(listed[-1][1]) if listed else None
    bound = None
    with contextlib.suppress(Exception):  # there is none where the search never began
        bound = float(network.GetDDualBound())
    written = answer_path + ".part"
    with open(written, "w", encoding="utf-8") as file:
        json.dump({"solution": solution, "bound": bound}, file)
    os.replace(written, answer_path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
