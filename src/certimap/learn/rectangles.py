"""Region graphs over pictures: rectangles of pixels that are split in several ways."""

from __future__ import annotations

from dataclasses import dataclass, field

Rectangle = tuple[int, int, int, int]  # first row, first column, end of the rows, end of the columns
Cut = tuple[Rectangle, Rectangle]


@dataclass(frozen=True)
class RegionGraph:
    """Regions of a picture, parts before the whole, and the splits of each region in two.

    `rectangles`: the regions; the last is the whole picture. `splits`: for each region, pairs of region numbers;
    none for a single pixel.
    """

    rectangles: list[Rectangle] = field(default_factory=list[Rectangle])
    splits: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])

    @property
    def n_splits(self) -> int:
        return sum(len(ways) for ways in self.splits)


def region_graph_of(height: int, width: int, step: int | None) -> RegionGraph:
    """Return the region graph of a picture.

    `height`, `width`: size of the picture in pixels. `step`: None halves squares both ways, and then the halves
    into squares: quad graphs. A number cuts rectangles at all its multiples, both ways, and halves smaller
    rectangles (after Poon and Domingos 2011). Splits share regions: each rectangle occurs once.
    """
    graph = RegionGraph()
    numbers: dict[Rectangle, int] = {}
    stack: list[tuple[Rectangle, list[Cut] | None]] = [((0, 0, height, width), None)]
    while stack:  # each rectangle is popped twice: its parts get numbers in between
        rectangle, cuts = stack.pop()
        if rectangle in numbers:
            continue
        if cuts is None:
            cuts = _halves(rectangle) if step is None else _cuts(rectangle, step)
            stack.append((rectangle, cuts))
            stack.extend((part, None) for cut in cuts for part in cut)
            continue
        numbers[rectangle] = len(graph.rectangles)
        graph.rectangles.append(rectangle)
        graph.splits.append([(numbers[a], numbers[b]) for a, b in cuts])
    return graph


def pixel_of(rectangle: Rectangle, width: int) -> int:
    """Return the number of a rectangle's first pixel, counted by rows."""
    return rectangle[0] * width + rectangle[1]


def _halves(rectangle: Rectangle) -> list[Cut]:
    """Halve the longer side; return both halvings of a square."""
    top, left, bottom, right = rectangle
    height, width = bottom - top, right - left
    cuts: list[Cut] = []
    if width >= height and width > 1:
        cuts.append(_beside(rectangle, left + width // 2))
    if height >= width and height > 1:
        cuts.append(_above(rectangle, top + height // 2))
    return cuts


def _cuts(rectangle: Rectangle, step: int) -> list[Cut]:
    """Cut at all multiples of `step` in both directions; in halves where there are none inside."""
    top, left, bottom, right = rectangle
    cuts = [_beside(rectangle, at) for at in range(left - left % step + step, right, step)]
    cuts += [_above(rectangle, at) for at in range(top - top % step + step, bottom, step)]
    return cuts or _halves(rectangle)


def _beside(rectangle: Rectangle, at: int) -> Cut:
    top, left, bottom, right = rectangle
    return (top, left, bottom, at), (top, at, bottom, right)


def _above(rectangle: Rectangle, at: int) -> Cut:
    top, left, bottom, right = rectangle
    return (top, left, at, right), (at, left, bottom, right)
