"""`certimap replay`: whether a recorded answer comes out again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from certimap.cli.options import EncodingOption, ModelArgument, WorkersOption, argument, option

DIFFERENT = 1


def replay(
    result: Annotated[Path, argument(metavar="RESULT.json", help="What solve --json or -o wrote.")],
    model: ModelArgument,
    workers: WorkersOption = None,
    time_limit: Annotated[
        float | None, option("--time-limit", metavar="SECONDS", help="In place of the recorded limit.")
    ] = None,
    encoding: EncodingOption = None,
) -> None:
    """Ask recorded queries again, with their seeds and settings, and compare everything but times.

    Exits with 0 when every answer came out as recorded, with 1 when one differs. What is different about this run
    (version, processor, memory) is said in either case.
    """
    import certimap
    from certimap.ask.replay import read_records
    from certimap.ask.replay import replay as again
    from certimap.io.native import fingerprint
    from certimap.kernels.notice import announce_compilation

    records = read_records(result)
    source: Any = certimap.read(model, encoding=encoding)
    own = fingerprint(source)
    announce_compilation()
    n_same, n_failed, notes = 0, 0, dict[str, None]()
    for number, record in enumerate(records, 1):
        if "asked" not in record:
            n_failed += 1
            continue
        done = again(source, record, workers=workers, time_limit=time_limit, model_fingerprint=own)
        n_same += done.same
        notes.update(dict.fromkeys(done.notes))
        for difference in done.differences:
            print(f"answer {number}: {difference}" if len(records) > 1 else difference)
    for note in notes:
        print(f"note: {note}")
    n_asked = len(records) - n_failed
    skipped = f"; {n_failed} cases that failed then were not asked" if n_failed else ""
    verdict = "the same as recorded" if n_same == n_asked else "DIFFERENT from what was recorded"
    print(f"{n_same} of {n_asked} answers are the same but for times{skipped}: {verdict}")
    if n_same < n_asked:
        raise typer.Exit(DIFFERENT)
