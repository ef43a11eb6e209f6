"""p(q | e) of discrete and real query variables together: a mixture of Gaussians for each state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Facts
from certimap.core.probing import SteadyProber
from certimap.core.search_boxes import Answers, Layout, SearchBoxes
from certimap.densities.posterior import NormalsPosterior, NormalsProber, SampledNormals
from certimap.errors import QueryError

Floats = NDArray[np.float64]


class MixedNormals:
    """The probability of each discrete state times the density of the real query variables given it.

    `states` has one row per possible joint state, in the order of the discrete variables; for each, `parts` has
    p(real variables, state | observed values), a mixture whose weights add to p(state | values). `log_evidence` is
    ln of the probability, or density, of the evidence.
    """

    def __init__(
        self, domain: Domain, states: NDArray[np.int64], parts: list[NormalsPosterior], log_evidence: float
    ) -> None:
        self.domain, self.states, self.parts = domain, states, parts
        self.discrete: NDArray[np.int64] = np.flatnonzero(domain.n_states > 0)
        self.real: NDArray[np.int64] = np.flatnonzero(domain.n_states == 0)
        self.facts = Facts.of(
            domain,
            log_evidence=None if parts[0].is_restricted else log_evidence,
            is_normalised=not parts[0].is_restricted,
            work=sum(part.facts.work for part in parts),
            log_slack=max(part.facts.log_slack for part in parts),
        )

    def log_prob(self, points: Points) -> Floats:
        """Return ln of probability times density at each row, shape (batch,); -inf if impossible."""
        points = np.asarray(points, np.float64)
        if points.ndim != 2 or points.shape[1] != len(self.domain):
            raise QueryError(f"points have shape {points.shape}; expected (batch, {len(self.domain)})")
        out = np.full(len(points), -np.inf)
        for state, part in zip(self.states, self.parts, strict=True):
            rows = np.flatnonzero(np.all(points[:, self.discrete] == state, axis=1))
            if len(rows):
                out[rows] = part.log_prob(points[np.ix_(rows, self.real)])
        return out

    def placed(self, k: int, values: Points) -> Points:
        """Return points of the query's variables from values of the real ones in state k."""
        out = np.empty((len(values), len(self.domain)))
        out[:, self.discrete], out[:, self.real] = self.states[k], values
        return out

    def prober(self) -> MixedProber:
        """Return a prober of boxes."""
        return MixedProber(self)


class SampledMixed(MixedNormals):
    """`MixedNormals` without intervals, with draws."""

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); rejects boxes, whose masses are unknown."""
        if boxes is not None:
            raise QueryError("draws inside boxes need their masses, which a full covariance has in no closed form")
        shares = np.array([float(np.exp(part.mixture.log_weights).sum()) for part in self.parts])
        which = rng.choice(len(shares), size=n, p=shares / shares.sum())
        points = np.empty((n, len(self.domain)))
        for k in range(len(self.parts)):
            rows = np.flatnonzero(which == k)
            part = self.parts[k]
            assert isinstance(part, SampledNormals)
            points[rows] = self.placed(k, part.sample(len(rows), rng))
        return points


class MixedProber(SteadyProber):
    """Probes the mixture of each state in a box; the box's bound is the largest of theirs."""

    def __init__(self, posterior: MixedNormals) -> None:
        self.of = posterior
        self.parts: list[NormalsProber] = [part.prober() for part in posterior.parts]
        scales = np.ones(len(posterior.domain))
        scales[posterior.real] = np.min([part.layout.scales for part in self.parts], axis=0)
        low, high = np.full(len(scales), -np.inf), np.full(len(scales), np.inf)
        low[posterior.real], high[posterior.real] = posterior.parts[0].low, posterior.parts[0].high
        layout = Layout.of(posterior.domain, scales, within=(low, high))
        super().__init__(posterior, layout, sum(part.work for part in self.parts))
        self.n_bytes = sum(part.n_bytes for part in self.parts)
        # for each part and discrete variable, the column of its state
        self.columns = self.layout.offsets[posterior.discrete] + posterior.states

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes; the mixture with the largest bound chooses the split of a real variable."""
        posterior, batch, n = self.of, len(boxes), len(self.of.domain)
        best = np.full(batch, -np.inf)
        each = np.full(boxes.mask.shape, -np.inf)
        splits, middles = np.full((batch, n), np.nan), np.full((batch, n), np.nan)
        is_real = self.layout.is_real[self.layout.variable_of]
        for part, columns in zip(self.parts, self.columns, strict=True):
            rows = np.flatnonzero(np.all(boxes.mask[:, columns] > 0, axis=1))
            if not len(rows):
                continue
            real = np.ix_(rows, posterior.real)
            inside = SearchBoxes(
                np.ones((len(rows), 2 * len(posterior.real)), np.uint8), boxes.low[real], boxes.high[real]
            )
            answers = part.probe(inside)
            for column in columns.tolist():
                each[rows, column] = np.maximum(each[rows, column], answers.log_bound)
            better = (answers.log_bound > best[rows]) | np.isnan(middles[real]).all(axis=1)
            best[rows] = np.maximum(best[rows], answers.log_bound)
            chosen = np.ix_(rows[better], posterior.real)
            splits[chosen] = answers.splits[better]
            middles[chosen] = (answers.splits if answers.middles is None else answers.middles)[better]
        each[:, is_real] = best[:, None]
        unknown = np.full(batch, np.nan)
        return Answers(unknown, best, np.full(each.shape, np.nan), each, splits, middles)

    def heed(self, control: Control) -> None:
        for part in self.parts:
            part.heed(control)

    def starts(self) -> Points:
        """Return the points reached by climbing from the components' means, in every state."""
        return np.concatenate([self.of.placed(k, part.starts()) for k, part in enumerate(self.parts)])

    def climb(self, points: Points) -> Points:
        """Return the point reached by expectation-maximisation from each row, with its state unchanged."""
        posterior = self.of
        out = np.array(points, np.float64)
        for k, state in enumerate(posterior.states):
            rows = np.flatnonzero(np.all(out[:, posterior.discrete] == state, axis=1))
            if len(rows):
                out[rows] = posterior.placed(k, self.parts[k].climb(out[np.ix_(rows, posterior.real)]))
        return out
