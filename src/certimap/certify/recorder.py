"""Records the splits of a search's boxes for a proof file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from certimap.core.arrays import Array, Bytes, Floats, Ints
from certimap.core.box import Layout, SearchBoxes
from certimap.core.posterior import Prober

if TYPE_CHECKING:
    from certimap.circuits.prober import PlanProber

LEAF, SHRUNK = -1, -2  # tree entries other than a split variable
ENTRY_BYTES = 250  # memory of a split in a dictionary, without masks and intervals


@dataclass(frozen=True)
class Split:
    """One split: the variable, the packed box when it was split, and the cut of a real variable."""

    variable: int
    kept: bytes
    at: float


@dataclass(eq=False)
class Recorder:
    """Splits of boxes, by the packed box as opened; cleared beyond `max_bytes`, when `is_full` is set."""

    max_bytes: int
    splits: dict[bytes, Split] = field(default_factory=dict[bytes, Split])
    cuts: dict[int, set[float]] = field(default_factory=dict[int, set[float]])  # where half an interval fell
    layout: Layout | None = None  # of the search that records here
    tightened: PlanProber | None = None  # the prober that tightened bounds beyond the box alone, by caps
    is_full: bool = False
    _n_bytes: int = 0

    def split(self, opened: SearchBoxes, variables: Ints, kept: SearchBoxes, at: Floats) -> None:
        """Record splits: boxes as opened and as split, the variables, and the cuts of real variables."""
        if self.is_full:
            return
        before, after = packed(opened), packed(kept)
        self._n_bytes += 2 * sum(len(b) for b in before) + ENTRY_BYTES * len(variables)
        if self._n_bytes > self.max_bytes:
            self._fill()
            return
        for row, v in enumerate(variables.tolist()):
            self.splits[before[row]] = Split(v, after[row], float(at[row]))

    def cut(self, variables: Ints, values: Floats) -> None:
        """Record values at which half of a real variable's interval was dropped."""
        if self.is_full:
            return
        for v, value in zip(variables.tolist(), values.tolist(), strict=True):
            self.cuts.setdefault(v, set()).add(value)
        self._n_bytes += 64 * len(variables)
        if self._n_bytes > self.max_bytes:
            self._fill()

    def tightens(self, prober: Prober) -> None:
        """Make a circuit's prober record how it tightens its bounds; other probers record nothing."""
        from certimap.circuits.prober import PlanProber
        from certimap.core.constrained import ConstrainedProber

        prober = prober.whole if isinstance(prober, ConstrainedProber) else prober
        if self.tightened is None and isinstance(prober, PlanProber):
            prober.keep_trace(self.max_bytes)
            self.tightened = prober

    def trace(self) -> dict[str, Array]:
        """Return the record of tightening in the format of proof files."""
        found = {} if self.tightened is None else self.tightened.trace()
        if found is None:
            self._fill()
        return found or {}

    def tree(self, layout: Layout) -> dict[str, Array]:
        """Return the tree of splits, in preorder, in the format of proof files; its root is the whole space."""
        entries: list[tuple[int, Split | None]] = []
        waiting = packed(layout.full())[::-1]
        while waiting:
            opened = waiting.pop()
            node = self.splits.get(opened)
            if node is None:
                entries.append((LEAF, None))
                continue
            if node.kept != opened:
                entries.append((SHRUNK, node))
            parts, v = packed(_parts(layout, node)), node.variable
            if layout.is_real[v] and not layout.low[v] <= node.at < layout.high[v]:
                waiting.append(parts[0 if node.at >= layout.high[v] else 1])  # the other part is empty
                continue
            entries.append((v, node))
            waiting += parts[::-1]
        splits = [(node, _unpacked(layout, node.kept)) for kind, node in entries if kind >= 0 and node is not None]
        cuts = _cuts(layout, splits, self.cuts)
        sizes = layout.domain.n_states.tolist()
        n_columns = sum(len(inner) + 1 if k == 0 else k for k, inner in zip(sizes, cuts, strict=True))
        if len(splits) * (n_columns // 8 + 1) > self.max_bytes:
            self._fill()
            return {}
        shrunk = [node.kept for kind, node in entries if kind == SHRUNK and node is not None]
        kept = [np.packbits(_columns(layout, _unpacked(layout, box), cuts)) for box in shrunk]
        found: dict[str, Array] = {"splits": np.array([kind for kind, _ in entries], np.int32)}
        found["kept"] = np.concatenate([*kept, np.zeros(0, np.uint8)])
        if not layout.domain.is_discrete:
            at = ((kind, math.nan if node is None or kind < 0 else node.at) for kind, node in entries)
            places = [0 if math.isnan(x) else np.searchsorted(cuts[kind], x) + 1 for kind, x in at]
            sizes = [0, *(len(inner) for inner in cuts)]
            found |= {"at": np.array(places, np.int32), "cuts": np.concatenate([*cuts, np.zeros(0)])}
            found["cut_ptr"] = np.cumsum(sizes).astype(np.int64)
        return found

    def _fill(self) -> None:
        self.is_full = True
        self.splits.clear()
        self.cuts.clear()


def packed(boxes: SearchBoxes) -> list[bytes]:
    """Pack each box to bytes."""
    bits = np.packbits(boxes.mask, axis=1)
    rows = zip(bits, boxes.low, boxes.high, strict=True)
    return [b.tobytes() + low.tobytes() + high.tobytes() for b, low, high in rows]


def _unpacked(layout: Layout, data: bytes) -> SearchBoxes:
    n_columns = int(layout.offsets[-1])
    bits = np.frombuffer(data, np.uint8, count=(n_columns + 7) // 8)
    ends = np.frombuffer(data, np.float64, offset=len(bits)).reshape(2, 1, -1)
    return SearchBoxes(np.unpackbits(bits, count=n_columns)[None], ends[0].copy(), ends[1].copy())


def _parts(layout: Layout, node: Split) -> SearchBoxes:
    """Return the parts of a split: one per kept state, or below and above a value."""
    box = _unpacked(layout, node.kept)
    start, stop = int(layout.offsets[node.variable]), int(layout.offsets[node.variable + 1])
    if layout.is_real[node.variable]:
        parts = box.rows([0, 0])
        parts.high[0, node.variable] = node.at
        parts.low[1, node.variable] = np.nextafter(node.at, np.inf)
        return parts
    states = np.flatnonzero(box.mask[0, start:stop])
    parts = box.rows(np.zeros(len(states), np.int64))
    parts.mask[:, start:stop] = 0
    parts.mask[np.arange(len(states)), start + states] = 1
    return parts


def _closed(low: float) -> float:
    """Return the value at which a cell begins; upper parts of splits begin at the next float."""
    return math.nextafter(low, -math.inf)


def _cuts(layout: Layout, splits: list[tuple[Split, SearchBoxes]], dropped: dict[int, set[float]]) -> list[Floats]:
    """Return the values at which splits, their boxes and drops cut each variable, ascending."""
    ends = [list(dropped.get(v, ())) for v in range(len(layout.domain))]
    for node, box in splits:
        for v in np.flatnonzero(layout.is_real).tolist():
            ends[v] += [_closed(float(box.low[0, v])), float(box.high[0, v])]
        if layout.is_real[node.variable]:
            ends[node.variable].append(node.at)
    found: list[Floats] = []
    for v, inner in enumerate(ends):
        values = np.unique(np.array(inner, np.float64))
        if layout.is_real[v]:
            values = values[(values >= layout.low[v]) & (values > -np.inf) & (values < layout.high[v])]
        found.append(values)
    return found


def _columns(layout: Layout, box: SearchBoxes, cuts: list[Floats]) -> Bytes:
    """Return a box's states and interval cells in the columns of a proof."""
    if layout.domain.is_discrete:
        return box.mask[0]
    parts: list[Bytes] = []
    for v, inner in enumerate(cuts):
        if layout.is_real[v]:
            cells = np.arange(len(inner) + 1)
            first = int(np.searchsorted(inner, _closed(float(box.low[0, v])), side="right"))
            last = int(np.searchsorted(inner, float(box.high[0, v]), side="left"))
            parts.append(((cells >= first) & (cells <= last)).astype(np.uint8))
        else:
            parts.append(box.mask[0, int(layout.offsets[v]) : int(layout.offsets[v + 1])])
    return np.concatenate(parts)
