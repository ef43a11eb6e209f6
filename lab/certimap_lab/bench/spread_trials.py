"""Trials run by the workers of any executor, on machines that see the folders of models and data."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from certimap.core.executors import Spread
from certimap_lab.bench.trial import TrialRunner, TrialSettings
from certimap_lab.bench.workers import Job, Outcome


class Trials:
    """What all trials share: where models lie, and the settings.

    Each thread of a worker makes a runner of its own, once, which keeps the model of its last trial in memory.

    Parameters
    ----------
    models
        The folder of learned models.
    settings
        Of all trials.
    data_dir
        The folder of the datasets, where rows of them are observed.
    """

    def __init__(self, models: Path, settings: TrialSettings, data_dir: str | None) -> None:
        self._arguments = (models.resolve(), settings, None if data_dir is None else str(Path(data_dir).resolve()))
        self._own = threading.local()

    def __getstate__(self) -> tuple[Path, TrialSettings, str | None]:
        return self._arguments

    def __setstate__(self, state: tuple[Path, TrialSettings, str | None]) -> None:
        self._arguments, self._own = state, threading.local()

    @property
    def runner(self) -> TrialRunner:
        """The calling thread's."""
        try:
            return self._own.runner
        except AttributeError:
            self._own.runner = TrialRunner(*self._arguments)
            return self._own.runner


def run_spread(executor: Executor, trials: Trials, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Run jobs, each by one worker, and yield an outcome for every part in the order of the jobs.

    A job whose worker dies is handed out again. No part is given up when it overruns its limit: an executor cannot
    end what it has begun.
    """
    todo = [job for job in jobs if job.parts]
    for outcomes in Spread(executor, _run_job, trials).results(len(todo), todo.__getitem__):
        yield from outcomes


def _run_job(trials: Trials, job: Job) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for part in job.parts:
        try:
            outcomes.append(Outcome(job.payload, part, trials.runner.trial(job.payload, part)))
        except Exception:  # a failed trial is a record, as where it has a process of its own
            problem: Any = traceback.format_exc(limit=-4)
            outcomes.append(Outcome(job.payload, part, None, problem))
    return outcomes
