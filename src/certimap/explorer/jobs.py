"""The page's questions: their answers as JSON, the same question as text, and the threads that answer."""

from __future__ import annotations

import json
import shlex
import time
import traceback
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread
from typing import Any

import numpy as np

from certimap.ask.api import map_query
from certimap.ask.inference import marginals, sample
from certimap.ask.next_test import next_test
from certimap.ask.replay import asked, read_evidence
from certimap.core.arguments import Record
from certimap.core.constraints import constraints_of
from certimap.core.control import Halt, current_control, halt_here
from certimap.core.domain import Categorical, Label, Real
from certimap.core.model import Model
from certimap.core.result import HistoryEntry, MapResult, json_ready
from certimap.core.summary import facts_of, warnings_of
from certimap.errors import CertimapError
from certimap.explanations import explain
from certimap.explanations.reports.page import proved, table, why

EVERY, DRAWS, BARS = 0.1, 4000, 24  # seconds between two messages about a search; of histograms


@dataclass(eq=False)
class Job:
    """A question to `model`, after the interventions `do`; `emit` receives events and their data, "end" last."""

    kind: str
    path: str
    emit: Callable[[str, Any], None]
    model: Model
    do: dict[str, Label]
    variables: list[str] | None
    evidence: Record
    settings: Any  # more keywords of `map_query`
    halt: Halt = field(default_factory=Halt)
    result: MapResult | None = None
    told: float = field(default_factory=time.perf_counter)  # when the search was last told about

    @classmethod
    def read(cls, base: Model, kind: str, given: Record, path: str, emit: Callable[[str, Any], None]) -> Job:
        """Read a request to a model, whose evidence is by position, as in records of `certimap solve`."""
        forms = {n: {"state" if base.domain[n].n_states else "value": x} for n, x in given["do"].items()}
        done, evidence = read_evidence(base.domain, forms), read_evidence(base.domain, given["evidence"])
        settings: Record = {"epsilon": given["epsilon"], "time_limit": given["time_limit"], "rng": 0}
        settings |= {"top_k": given["top_k"]} if given["top_k"] != 1 else {}
        settings |= {"constraints": list(rules)} if (rules := constraints_of(given["constraints"])) else {}
        return cls(kind, path, emit, base.do(done) if done else base, done, given["query"], evidence, settings)

    def texts(self) -> Record:
        """Return the question as Python code, and as commands for a POSIX shell."""
        plain, files = {n: x for n, x in self.settings.items() if n != "constraints"}, Record()
        rules = self.settings.get("constraints", [])
        words = ["model", repr(self.variables), repr(self.evidence), *(f"{n}={x!r}" for n, x in plain.items())]
        words += [f"constraints=[{', '.join(f'cm.{rule!r}' for rule in rules)}]"] if rules else []
        model = f"cm.read({self.path!r}){f'.do({self.do!r})' if self.do else ''}"
        python = f"import certimap as cm\n\nmodel = {model}\nprint(cm.map_query({', '.join(words)}))"
        words = ["certimap", "solve", self.path, *(word for name in self.variables or () for word in ("-q", name))]
        if all(isinstance(x, str | int | float) for x in self.evidence.values()):
            words += [word for name, label in self.evidence.items() for word in ("-e", f"{name}={label}")]
        else:
            files["evidence-file"] = self.evidence
        if rules:
            files["constraints"] = [rule.to_dict() for rule in rules]
        words += [word for name, label in self.do.items() for word in ("--do", f"{name}={label}")]
        words += [word for name in files for word in (f"--{name}", f"{name}.json")]
        words += [word for name, x in plain.items() for word in (f"--{name.replace('_', '-')}", str(x))]
        written = "".join(f"printf %s {shlex.quote(json.dumps(x))} > {name}.json\n" for name, x in files.items())
        return {"python": python, "shell": written + shlex.join(words)}

    def record(self, result: MapResult) -> Record:
        how = asked(self.model, self.variables, self.evidence, self.settings, file=self.path)
        return json.loads(result.to_json()) | {"asked": how, "history": result.history_columns()}

    def run(self) -> None:
        halt_here.set(self.halt)
        try:
            {"answer": self._answer, "explain": self._explain, "next": self._next}[self.kind]()
        except KeyboardInterrupt:
            self.emit("stopped", {})
        except Exception as error:
            if not isinstance(error, CertimapError):
                traceback.print_exc()
            self.emit("refused", {"message": str(error) or type(error).__name__})
        finally:
            self.emit("end", {})

    def _answer(self) -> None:
        self.emit("asked", self.texts())
        result = map_query(self.model, self.variables, self.evidence, progress=self._follow, **self.settings)
        self.result, low, high = result, result.log_prob, result.log_upper_bound
        what = "density" if result.is_density else "probability" if low is not None else "joint value"
        if low is None:
            low, high = result.log_joint, result.log_joint_upper_bound
        told: Record = {"low": low, "high": high, "notes": warnings_of(result), "proved": proved(result)}
        told |= {"top": [[self._positions(a), value] for a, value in result.top or []], "what": what}
        told |= {"assignment": self._positions(result.assignment), "certified": result.certified}
        told |= {"seconds": result.seconds, "facts": table("In numbers", None, facts_of(result), "facts")}
        self.emit("answer", json_ready(told))
        single = partial(marginals, self.model, None, self.evidence, time_limit=self.settings["time_limit"])
        for name, find in (("marginals", single), ("histograms", self._histograms)):
            try:
                self.emit(name, {n: list(x.values()) for n, x in find().items()})
            except CertimapError as error:
                self.emit(name, {"": str(error)})

    def _positions(self, assignment: Mapping[str, Label]) -> Record:
        pairs = ((self.model.domain[name], label) for name, label in assignment.items())
        return {v.name: v.index(label) if isinstance(v, Categorical) else label for v, label in pairs}

    def _follow(self, entry: HistoryEntry) -> None:
        control, now = current_control(), time.perf_counter()
        if now - self.told < EVERY or control is None or control.best is None:
            return
        self.told, best = now, control.best()
        told: Record = {"seconds": entry.seconds, "low": entry.log_prob, "high": entry.log_upper_bound}
        self.emit("progress", json_ready(told | {"assignment": best and self._positions(best)}))

    def _histograms(self) -> Record:
        """Return the shares of bars, from draws, by real variable; the bars' ends do not depend on evidence."""
        found, limit = Record(), self.settings["time_limit"]
        every = [v.name for v in self.model.domain if isinstance(v, Real)]
        names = [name for name in every if name not in self.evidence]
        for evidence, own in ((None, every), (self.evidence, names)) if names else ():
            for name, x in sample(self.model, DRAWS, evidence, own, rng=0, time_limit=limit).items():
                ends = np.quantile(x, (0.002, 0.998)).tolist() if evidence is None else found[name]["ends"]
                counts, _ = np.histogram(np.clip(x, *ends), BARS, ends)
                found[name] = {"ends": ends, "shares": (counts / DRAWS).tolist()}
        return {name: found[name] for name in names}

    def _explain(self) -> None:
        limits = {name: self.settings.get(name, ()) for name in ("constraints", "time_limit")}
        found = explain(self.model, self.variables, self.evidence, rng=0, **limits)
        self.emit("html", {"title": "Why this answer", "html": why(found)})

    def _next(self) -> None:
        found = next_test(
            self.model, self.variables or [], None, self.evidence, time_limit=self.settings["time_limit"]
        )
        rows = [(name, f"{g.information:.4f}", f"{g.change:.4f}") for name, g in list(found.items())[:12]]
        head = ("observe", "information (nats)", "P(answer changes)")
        self.emit("html", {"title": "What to observe next", "html": table("Most informative first", head, rows)})


class Tab:
    """The jobs of one tab and its thread: a job that begins stops the running one, and replaces one that waits."""

    def __init__(self, model: Model) -> None:
        self.model = deepcopy(model)  # threads share no model: what it computes when first used is not locked
        self.last: Job | None = None  # the last that looked for an answer
        self._jobs: list[Job] = []  # the running one, then one that waits
        self._lock = Lock()

    def begin(self, job: Job) -> None:
        with self._lock:
            for dropped in self._jobs[1:]:
                dropped.emit("end", {})
            self._jobs = [*self._jobs[:1], job]
            if self._jobs[0] is job:
                Thread(target=self._work, name="certimap explorer", daemon=True).start()
            else:
                self._jobs[0].halt.stop()

    def stop(self) -> None:
        for job in self._jobs:
            job.halt.stop()

    def _work(self) -> None:
        jobs = self._jobs
        while jobs:
            self.last = jobs[0] if jobs[0].kind == "answer" else self.last
            jobs[0].run()
            with self._lock:
                self._jobs = jobs = self._jobs[1:]
