"""Circuits of the benchmark: learned once per dataset, kept on disk with how they were learned."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certimap import __version__
from certimap.core.query import make_query
from certimap_lab.bench.protocol import condition_on
from certimap_lab.bench.records import BenchError, Record, write_json

if TYPE_CHECKING:
    from certimap.learn.datasets import Dataset

LEARNERS: dict[str, tuple[str, str | None, dict[str, float]]] = {
    "learnspn": ("LearnSPN", None, {}),
    "learnspn-large": ("LearnSPN", None, {"threshold": 0.05, "min_rows": 10, "smoothing": 0.1}),
    "chow-liu": ("ChowLiuTree", None, {}),
    "clt-mixture": ("ChowLiuMixture", "n_components", {}),
    "hclt": ("HiddenChowLiuTree", "n_states", {}),
}
"""The estimator of each kind of circuit in `certimap.learn`, what the number in a name sets, and other settings.

LearnSPN chooses its settings on validation rows, which prefer small circuits; the large ones split rows as long as
ten of them show any dependence.
"""


@dataclass(frozen=True)
class CircuitKind:
    """A circuit of the benchmark by name: a learner and a size, as in "hclt16"."""

    name: str
    learner: str
    size: int | None

    @classmethod
    def parse(cls, text: str) -> CircuitKind:
        """Read a name like "learnspn", "hclt16" or "clt-mixture8"; raise BenchError for others."""
        match = re.fullmatch(r"([a-z-]+?)(\d+)?", text.strip())
        if (
            match
            and match[1] in LEARNERS
            and (match[2] is None or (LEARNERS[match[1]][1] is not None and int(match[2]) > 0))
        ):
            return cls(text.strip(), match[1], int(match[2]) if match[2] else None)
        raise BenchError(
            f"{text!r} is no circuit of the benchmark; expected learnspn, learnspn-large, chow-liu, hclt16 or "
            "clt-mixture8 (with any number)"
        )

    def estimator(self, seed: int) -> Any:
        """Return the unfitted estimator."""
        from certimap import learn

        name, size_setting, settings = LEARNERS[self.learner]
        sizes = {} if size_setting is None or self.size is None else {size_setting: self.size}
        estimator = getattr(learn, name)(random_state=seed, progress=False, **settings, **sizes)
        if "workers" in estimator.get_params():
            estimator.set_params(workers=1)  # circuits are learned side by side
        return estimator


def model_path(folder: Path, dataset: str, circuit: str) -> Path:
    """Return where a folder of models keeps that of a dataset and circuit."""
    return folder / f"{dataset}-{circuit}.npz"


def known_model(folder: Path, dataset: str, circuit: str) -> Record | None:
    """Return how a kept model was learned, or None where it is not kept."""
    path = model_path(folder, dataset, circuit)
    provenance = path.with_suffix(".json")
    if path.is_file() and provenance.is_file():
        return json.loads(provenance.read_text())
    return None


def ensure_model(folder: Path, data_dir: str | None, dataset: str, circuit: str, seed: int) -> Record:
    """Learn and keep a model unless the folder has it; return how it was learned.

    The record holds the files learned on, the seconds, the size of the circuit and the mean test
    log-likelihood in nats (of the rows that `test_rows_from` names).
    """
    known = known_model(folder, dataset, circuit)
    if known is not None:
        return known
    from certimap.learn import datasets

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datasets.StandInWarning)
        data = datasets.load(dataset, data_dir)
    kind = CircuitKind.parse(circuit)
    started = time.perf_counter()
    estimator = kind.estimator(seed).fit(data)
    seconds = time.perf_counter() - started
    record = _provenance(estimator, data, kind, seed, seconds)
    path = model_path(folder, dataset, circuit)
    _write_whole(estimator.model_, path)
    write_json(path.with_suffix(".json"), record)
    return record


def load_model(folder: Path, dataset: str, circuit: str) -> Any:
    """Read a model that `ensure_model` has kept."""
    from certimap import io

    return io.read(model_path(folder, dataset, circuit))


def _write_whole(model: Any, path: Path) -> None:
    """Write a model so that a stopped run leaves it whole or absent."""
    from certimap import io

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"part-{os.getpid()}-{path.name}")
    io.write(model, part)
    part.replace(path)


def _provenance(estimator: Any, data: Dataset, kind: CircuitKind, seed: int, seconds: float) -> Record:
    model = estimator.model_
    posterior: Any = condition_on(model, make_query(model.domain))
    settings = {k: v for k, v in estimator.get_params().items() if k not in ("random_state", "progress", "domain")}
    choice: Any = getattr(estimator, "choice_", None)
    return {
        "dataset": data.name,
        "circuit": kind.name,
        "learner": kind.learner,
        "size": kind.size,
        "settings": settings,
        "chosen": choice._asdict() if hasattr(choice, "_asdict") else choice,
        "n_variables": len(model.domain),
        "n_edges": int(posterior.facts.work),
        "train_rows_from": data.sources["train"],
        "valid_rows_from": data.sources["valid"],
        "test_rows_from": data.sources["test"],
        "n_train_rows": len(data.train),
        "test_log_likelihood": float(estimator.score(data.test)),
        "seconds_learning": round(seconds, 3),
        "seed": seed,
        "version": __version__,
    }
