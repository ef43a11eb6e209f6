"""MapImputer: a scikit-learn transformer that fills missing cells: joint modes with certificates, means, draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from certimap.ask.batch import BatchRow, map_rows
from certimap.ask.cells import drawn_row, expected_cells
from certimap.ask.session import Session
from certimap.core.arguments import check_ranges, check_whole, is_records, shown
from certimap.core.arrays import Flags, Floats
from certimap.core.box import Points
from certimap.core.domain import Domain, Real
from certimap.core.model import Model
from certimap.core.named import needed
from certimap.core.query import refuse_doubled
from certimap.core.result import MapResult
from certimap.errors import DataError
from certimap.interop import as_model
from certimap.learn import ChowLiuTree, FullMixture, HiddenChowLiuTree, LearnSPN, ProductMixture
from certimap.learn.estimator import DensityEstimator, Seed, draw_seed
from certimap.learn.table import DataTable, Kind, encode, missing_in, read_table
from certimap.solvers.request import Request

_NEEDS = "MapImputer needs scikit-learn 1.6 or later: pip install 'certimap[learn]'"
_joblib, _base, _exceptions, _validation = (
    needed(module, _NEEDS)
    for module in ("joblib", "sklearn.base", "sklearn.exceptions", "sklearn.utils.validation")
)
_NAMES = ("hclt", "gaussian-mixture", "mixture", "learnspn", "chow-liu")
METHODS = dict(zip(_NAMES, (HiddenChowLiuTree, FullMixture, ProductMixture, LearnSPN, ChowLiuTree), strict=True))
TAKE_NUMBERS = (FullMixture, ProductMixture, LearnSPN)
COMPONENTS = (1, 2, 4)  # of mixtures of Gaussians that "auto" tries
POINTS = ("joint", "marginal", "mean")
SHARE = 5  # one row in five, and one in five of its cells, judges the methods of "auto"
JUDGED, MASKS = 200, 3  # about so many rows, each with so many choices of hidden cells
AVERAGED = 8  # hidden trees, where cells are not filled jointly
ROWS_TOGETHER = 128  # rows per task of the pool; seeds are per task, so that the pool's size changes no answer


class Imputation(NamedTuple):
    """A filled table, with certificates."""

    filled: Any  # the table, of the same type as the input
    # for each row the `MapResult` of its missing cells, with its certificate; None for a complete row, and with
    # another `point` than "joint". Intervals of numbers (see `MapImputer`) appear as their state numbers.
    results: list[MapResult | None]


class NotFitted(DataError, _exceptions.NotFittedError):
    """Raised when an imputer is used before it is fitted."""


How = str | np.random.Generator  # a point, or draws
Columns = Mapping[str, Any]  # by name


@dataclass(frozen=True, eq=False)
class _Intervals:
    """The intervals of a numeric column: inner edges, and the values inside each."""

    edges: Floats
    inside: list[Floats]

    @classmethod
    def of(cls, values: Floats, n: int) -> _Intervals:
        """Cut at quantiles; intervals without values are dropped."""
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, n + 1)[1:-1]))
        edges = edges[edges > values.min()]
        place = np.searchsorted(edges, values, side="right")
        return cls(edges, [values[place == k] for k in range(len(edges) + 1)])

    def place(self, values: Floats) -> Floats:
        """Return the interval number of each value, NaN for NaN."""
        known = ~np.isnan(values)
        return np.where(known, np.searchsorted(self.edges, np.where(known, values, 0.0), side="right"), np.nan)

    def fill(self, found: Floats, how: How) -> Floats:
        """Return means under probabilities of intervals; or a median of, or draw from, the most probable one."""
        if how == "mean":
            return found @ np.array([np.mean(x) for x in self.inside])
        places: list[int] = found.argmax(axis=1).tolist()
        inside = [self.inside[k] for k in places]
        return np.array([np.median(x) if isinstance(how, str) else how.choice(x) for x in inside], np.float64)


@dataclass(eq=False, repr=False)
class MapImputer(_base.OneToOneFeatureMixin, _base.TransformerMixin, _base.BaseEstimator):
    """Fill the missing cells of each row from a model of the table, given the row's other cells.

    Cells filled by their most probable joint state are consistent with each other, and `impute` returns a
    certificate for each row: that no other fill is more probable under the model. Cells filled one by one are each
    right more often. `draw` completes the table several times, at random.

    - `model`: how to learn a model from the table: "hclt" (a hidden Chow-Liu tree), "gaussian-mixture" (columns of
      numbers alone), "mixture", "learnspn" or "chow-liu"; an estimator from `certimap.learn`; or a model, possibly
      from another library, whose variables are the columns by name. "auto" takes "hclt"; for columns of numbers
      alone, it or a mixture of 1, 2 or 4 Gaussians, whichever fills hidden cells of other rows best.
    - `point`: "joint": the most probable joint state of a row's missing cells. "marginal": each cell's own most
      probable state or number. "mean": the means of numbers, else as "marginal".
    - `max_levels`: columns of more distinct numbers than this are numbers; other columns have states.
    - `bins`: the intervals, of about equal frequency, into which "hclt" and "chow-liu" cut numbers. A missing
      number is filled with the median (or mean) of the training values in its most probable interval (or in all).
    - `n_models`: models to average, learned with different seeds; None: 8 hidden trees where cells are not filled
      jointly, else 1.
    - `epsilon`: the requested certificate: a fill is at least (1 - epsilon) times as probable as the best. None:
      0, which requests the best, or .01 where a variable is real and densities are compared.
    - `time_limit`: seconds per row; a row that reaches the limit gets the best fill found, with the certificate
      earned so far.
    - `n_jobs`: processes for rows, as in scikit-learn; None means 1, -1 all processors. The answer does not depend
      on it.
    - `random_state`: seed or generator, for learning and for solvers that sample.

    After `fit`, `model_` is the model (of several, the first), `models_` are all that are averaged, `learner_` is
    the estimator that learned them (None for a given model), `domain_` their variables: one per known column, with
    intervals as the states 0, 1, ..., `seed_` the seed of the run, `n_features_in_` the number of columns, and
    `feature_names_in_` their names if a frame was given.

    NaN, None and pandas' missing values count as missing. Arrays, lists, pandas and polars frames keep their type,
    dtypes, categories and index; columns of whole numbers are filled with whole numbers. A label not seen in `fit`
    is refused, because the model gives it no probability.

    >>> import numpy as np
    >>> from certimap import MapImputer
    >>> rows = np.array([[0, 0], [1, 1], [0, 0], [1, 1], [0, np.nan], [np.nan, 1]] * 5)
    >>> MapImputer(random_state=0).fit_transform(rows)[-2:]
    array([[0., 0.],
           [1., 1.]])
    """

    model: Any = "auto"
    _: KW_ONLY
    point: str = "joint"
    max_levels: int = 20
    bins: int = 8
    n_models: int | None = None
    epsilon: float | None = None
    time_limit: float | None = None
    n_jobs: int | None = None
    random_state: Seed = None

    def __sklearn_tags__(self) -> Any:
        """Declare that missing values, labels and categories are accepted."""
        above: Any = super()
        tags = above.__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn a model from a table `X`, or check that the given model knows its columns; return this imputer.

        `X` is a 2-D array, a list of rows (of dicts, with pandas), or a pandas or polars frame. `y` is ignored.
        Raises DataError for an unknown method, a column without any value, infinite numbers, and input the method
        cannot take.
        """
        check_ranges(self, "max_levels, n_models [1, inf); bins [2, inf)", DataError)
        if self.point not in POINTS:
            raise DataError(f"point is {shown(self.point)}; expected one of {', '.join(map(repr, POINTS))}")
        table = _framed(X)
        array: Any = _validated(self, table, reset=True)
        columns = _columns(table, array)
        self._names, self.seed_ = list(columns), draw_seed(self.random_state)
        self._intervals: dict[str, _Intervals] = {}
        is_given = not isinstance(self.model, str | DensityEstimator)
        self._levels: dict[str, Floats] = {}
        for name, column in columns.items():
            numbers = _numbers(column)
            if numbers is not None and not (is_given and column.dtype.kind == "f"):
                self._levels[name] = np.unique(numbers[~np.isnan(numbers)])
        self.learner_: DensityEstimator | None = None
        if is_given:
            self.models_: list[Model] = [as_model(self.model)]
            self.domain_: Domain = _known(self.model_.domain, columns)
            self._encoded(columns)
            return self
        best, *others = self._candidates()
        if others:
            best = min([best, *others], key=lambda learner: self._loss(columns, learner))
        is_averaged = isinstance(best, HiddenChowLiuTree) and self.point != "joint"
        n = self.n_models or (AVERAGED if is_averaged else 1)
        if self.point == "joint" and n > 1:
            raise DataError(f"n_models is {n}; joint modes are of one model: expected 1, or another point")
        seeds: list[Any] = np.random.SeedSequence(self.seed_).generate_state(n, np.uint32).tolist()
        rows, self.learner_ = self._rows(columns, best), best
        self.models_ = [best.fit(rows).model_]
        chosen = best.choice_._asdict() if isinstance(best, HiddenChowLiuTree) else {}
        for seed in seeds[1:]:
            self.models_.append(_base.clone(best).set_params(random_state=seed, **chosen).fit(rows).model_)
        return self

    @property
    def model_(self) -> Model:
        """The model; the first of several."""
        return self.models_[0]

    def _candidates(self) -> list[Any]:
        """Return the estimators to choose from."""
        if isinstance(self.model, DensityEstimator):
            return [_base.clone(self.model)]
        if self.model in METHODS:
            return [METHODS[self.model](progress=False, random_state=self.seed_)]
        if self.model != "auto":
            known = ", ".join(("auto", *METHODS))
            raise DataError(f"model is {self.model!r}; {known}, an estimator or a model is expected")
        found: list[Any] = [HiddenChowLiuTree()]
        if any(map(self._is_number, self._names)) and len(self._levels) == len(self._names):
            found += [FullMixture(k, smoothing=1.0, n_starts=1) for k in COMPONENTS]
        return [learner.set_params(progress=False, random_state=self.seed_) for learner in found]

    def _is_number(self, name: str) -> bool:
        """Whether a column has numbers rather than states."""
        return len(self._levels.get(name, ())) > self.max_levels

    def _rows(self, columns: Columns, learner: DensityEstimator) -> DataTable:
        """Read the table for a learner: numbers as they are, or as intervals."""
        takes, everywhere = isinstance(learner, TAKE_NUMBERS), isinstance(learner, FullMixture)
        real = {name for name in columns if everywhere or (takes and self._is_number(name))}
        self._intervals = {
            name: _Intervals.of(own[~np.isnan(own)], self.bins)
            for name in columns
            if self._is_number(name) and name not in real and (own := _numbers(columns[name])) is not None
        }
        kinds: dict[str, Kind] = {name: "real" if name in real else "categorical" for name in columns}
        rows = read_table(self._cut(columns), kinds=kinds)
        self.domain_ = rows.domain
        return rows

    def _loss(self, columns: Columns, learner: Any) -> float:
        """Learn from four fifths of the rows, hide cells of the rest; return the mean error of what fills them."""
        rows, rng = self._rows(columns, learner), np.random.default_rng(self.seed_)
        folds = np.array_split(rng.permutation(len(rows)), min(SHARE, len(rows)))
        off = [np.full((len(columns), 0), np.nan)]  # 0 or 1, or squares in variances; NaN for cells not judged
        for fold in folds[: -(-JUDGED // len(folds[0]))]:
            held = np.tile(fold, MASKS)
            points, rest = rows.points[held].copy(), np.setdiff1d(np.arange(len(rows)), fold)
            hidden = (rng.integers(SHARE, size=points.shape) == 0) & ~missing_in(points)
            points[hidden] = np.nan if points.dtype.kind == "f" else -1
            found = expected_cells(learner.fit(rows.rows(rest)).model_, rows.domain, points, self.seed_)
            off.append(np.full((len(columns), len(held)), np.nan))
            for i, name in enumerate(self._names):
                numbers, at = _numbers(columns[name]), np.flatnonzero(hidden[:, i])
                if numbers is not None:
                    away = np.array(self._values(name, found[i][at], "mean"), np.float64) - numbers[held[at]]
                    is_number = self._is_number(name)
                    off[-1][i, at] = (away / np.nanstd(numbers)) ** 2 if is_number else away != 0.0
        return float(np.nanmean(np.hstack(off)))

    def _cut(self, columns: Columns) -> Columns:
        """Replace the numbers of cut columns by interval numbers."""
        out = dict(columns)
        for name, intervals in self._intervals.items():
            numbers = _numbers(columns[name])
            if numbers is None:
                raise DataError(f"column {name!r} held numbers when the imputer was fitted, and holds labels now")
            out[name] = intervals.place(numbers)
        return out

    def _encoded(self, columns: Columns) -> Points:
        """Return the rows as points of the model's variables."""
        table = self._cut(columns)
        return encode({name: table[name] for name in self.domain_.names}, self.domain_).points

    def transform(self, X: Any) -> Any:
        """Return `X`, a table with the fitted columns, with its missing cells filled; see `impute`.

        It has the input's type, or the type chosen by `set_output`.
        """
        return self.impute(X).filled

    def impute(self, X: Any) -> Imputation:
        """Return a filled table `X`, with the fitted columns, and each row's result with its certificate.

        Raises NotFitted before `fit`, DataError for other columns and for unknown values, ImpossibleEvidence for a
        row whose known cells have probability 0, and QueryError for a model without means.
        """
        table, array, points = self._read(X)
        missing = missing_in(points)
        rows = np.flatnonzero(missing.any(axis=1))
        results: list[MapResult | None] = [None] * len(points)
        if not len(rows):
            return Imputation(self._filled(X, table, array, missing, [], self.point), results)
        keys = np.where(missing, -np.inf, points)[rows]
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        distinct, at = points[rows[first]], np.zeros(len(points), np.int64)
        absent, at[rows] = missing_in(distinct), which.ravel()
        if self.point == "joint":
            asked = [[self.domain_.names[i] for i in np.flatnonzero(row)] for row in absent]
            answers = self._answers(distinct, asked)
            found = self._certain(distinct, answers)
            for row in rows.tolist():
                results[row] = answers[at[row]]
        else:
            of_models = [expected_cells(model, self.domain_, distinct, self.seed_) for model in self.models_]
            found = [np.mean(own, axis=0) for own in zip(*of_models, strict=True)]
            for i in np.flatnonzero(self.domain_.n_states == 0).tolist() if self.point == "marginal" else ():
                here = np.flatnonzero(absent[:, i])
                modes = self._answers(distinct[here], [[self.domain_.names[i]]] * len(here))
                found[i][here] = self._certain(distinct[here], modes)[i]
        filled = self._filled(X, table, array, missing, [own[at] for own in found], self.point)
        return Imputation(filled, results)

    def draw(self, X: Any, n_draws: int = 5, *, rng: Seed = None) -> list[Any]:
        """Return `n_draws` completed tables, with missing cells drawn given the row's other cells.

        `X`, the type of the tables and the exceptions are as in `impute`; `rng` is a seed, None for `seed_`. Each
        table is one of a multiple imputation (Rubin 1987): results that differ among them are uncertain. Averaged
        models take turns.
        """
        table, array, points = self._read(X)
        n_draws = check_whole("n_draws", n_draws, "a whole number of tables from 1", DataError, low=1)
        own = np.random.default_rng(self.seed_ if rng is None else draw_seed(rng))
        missing, drawn = missing_in(points), np.repeat(points[None], n_draws, axis=0)
        turns = [slice(k, None, len(self.models_)) for k in range(min(n_draws, len(self.models_)))]
        for row, stream in zip(np.flatnonzero(missing.any(axis=1)).tolist(), own.spawn(len(points)), strict=False):
            for turn, model in zip(turns, self.models_, strict=False):
                n = len(range(n_draws)[turn])
                drawn[turn, row, missing[row]] = drawn_row(model, self.domain_, points[row], n, stream)
        return [self._filled(X, table, array, missing, self._certain(rows), own) for rows in drawn]

    def _read(self, X: Any) -> tuple[Any, Any, Points]:
        """Return a table as a frame if it has records, as a validated array, and as points."""
        if not hasattr(self, "models_"):
            raise NotFitted("this MapImputer is not fitted; call fit first")
        table = _framed(X)
        array: Any = _validated(self, table, reset=False)
        return table, array, self._encoded(dict(zip(self._names, _columns(table, array).values(), strict=True)))

    def _answers(self, points: Points, asked: Sequence[list[str]]) -> list[MapResult]:
        """Answer distinct rows, in tasks of a fixed size."""
        starts = range(0, len(points), ROWS_TOGETHER)
        seeds = np.random.SeedSequence(self.seed_).generate_state(len(starts), np.uint64).tolist()
        least = 0.0 if self.domain_.is_discrete else 0.01
        epsilon = least if self.epsilon is None else self.epsilon
        request = Request.of(epsilon=epsilon, time_limit=self.time_limit, workers=1)
        delayed, parts = _joblib.delayed, [slice(start, start + ROWS_TOGETHER) for start in starts]
        tasks = [
            delayed(_answer_rows)(self.model_, self.domain_, points[part], asked[part], seed, request)
            for part, seed in zip(parts, seeds, strict=True)
        ]
        found: list[list[MapResult]] = _joblib.Parallel(n_jobs=self.n_jobs)(tasks)
        return [answer for part in found for answer in part]

    def _certain(self, points: Points, answers: Sequence[MapResult] = ()) -> list[Floats]:
        """Return rows, completed by answers, in the form of `expected_cells`."""
        points = points.copy()
        for row, answer in zip(points, answers, strict=bool(answers)):
            for name, label in answer.assignment.items():
                variable = self.domain_[name]
                row[self.domain_.index(name)] = label if isinstance(variable, Real) else variable.index(label)
        columns = zip(points.T, self.domain_.n_states.tolist(), strict=True)
        return [np.eye(n)[column.astype(np.int64)] if n else column[:, None] for column, n in columns]

    def _values(self, name: str, found: Floats, how: How) -> list[Any]:
        """Return values of a column, such as it has: one of a few numbers, or whole numbers, or any."""
        variable, cut, levels = self.domain_[name], self._intervals.get(name), self._levels.get(name)
        if cut is None and not isinstance(variable, Real):
            return [variable.states[k] for k in found.argmax(axis=1).tolist()]
        values = found[:, 0] if cut is None else cut.fill(found, how)
        if levels is None or not len(levels):
            return values.tolist()
        if len(levels) <= self.max_levels and self.learner_ is not None:
            return levels[np.searchsorted(0.5 * (levels[1:] + levels[:-1]), values)].tolist()
        return (np.rint(values) if np.all(levels == np.rint(levels)) else values).tolist()

    def _filled(self, X: Any, table: Any, array: Any, missing: Flags, found: Sequence[Floats], how: How) -> Any:
        """Fill the missing cells from what is expected in them, in a copy of the table that is like `X`."""
        is_frame, is_polars = hasattr(table, "iloc"), _library(table) == "polars"
        out: Any = table.clone() if is_polars else (table if is_frame else array).copy()
        for i, (name, own) in enumerate(zip(self.domain_.names, found, strict=False)):
            rows: list[int] = np.flatnonzero(missing[:, i]).tolist()
            if not rows:
                continue
            j, values = self._names.index(name), self._values(name, own[rows], how)
            if is_polars:
                column = table[table.columns[j]]
                cells: Any = np.array(column.to_list(), object)
                cells[rows] = list(map(int, values)) if column.dtype.is_integer() else values
                out = out.with_columns(type(column)(column.name, cells.tolist(), dtype=column.dtype))
            elif is_frame:
                column = table.iloc[:, j].copy()
                column.iloc[rows] = values
                out.isetitem(j, column)
            else:
                for row, value in zip(rows, values, strict=True):
                    out[row, j] = value
        return out.to_dict("records") if is_records(X) else out


def _framed(X: Any) -> Any:
    """Return a list of dicts as a pandas frame, other tables as they are."""
    if not is_records(X):
        return X
    pandas = needed("pandas", "lists of dicts need pandas: pip install 'certimap[pandas]'")
    return pandas.DataFrame.from_records(X).convert_dtypes()


def _validated(imputer: Any, X: Any, *, reset: bool) -> Any:
    """Validate a table with scikit-learn; return it as an array."""
    if hasattr(X, "columns"):
        refuse_doubled(list(X.columns), "the table has two columns", DataError)
    try:
        return _validation.validate_data(imputer, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
    except (TypeError, ValueError) as error:
        raise DataError(" ".join(str(error).split())) from None


def _columns(X: Any, array: Any) -> Columns:
    """Return the columns by name (frames) or by number as text (arrays)."""
    if hasattr(X, "iloc"):
        return {str(name): X.iloc[:, j] for j, name in enumerate(X.columns)}
    if _library(X) == "polars":
        return {str(name): X[name].to_numpy() for name in X.columns}
    if hasattr(X, "columns"):
        raise DataError(f"a frame of {_library(X)} was given; expected pandas or polars frames, or arrays")
    return {str(j): array[:, j] for j in range(array.shape[1])}


def _library(X: Any) -> str:
    return type(X).__module__.partition(".")[0]


def _numbers(column: Any) -> Floats | None:
    """Return a numeric column with NaN for missing values; None for other columns."""
    if getattr(getattr(column, "dtype", None), "kind", "O") not in "iuf" or hasattr(column, "cat"):
        return None
    if hasattr(column, "to_numpy"):
        column = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(column, np.float64)


def _known(domain: Domain, columns: Columns) -> Domain:
    """Return the variables of a model that are columns; refuse unknown columns."""
    for name in columns:
        domain.index(name)  # QueryError names near misses
    return domain.subset([i for i, variable in enumerate(domain) if variable.name in columns])


def _answer_rows(
    model: Model, domain: Domain, points: Points, asked: Sequence[list[str]], seed: int, request: Request
) -> list[MapResult]:
    """Answer the rows of one task."""
    rows: list[BatchRow] = []
    for k, (point, names) in enumerate(zip(points, asked, strict=True)):
        observed = np.flatnonzero(~missing_in(point))
        evidence = domain.subset(observed.tolist()).decode(point[observed])
        rows.append(BatchRow(k, lambda asked=names, evidence=evidence: (asked, evidence), "a row of the table"))
    answers = map_rows(Session(model, request), rows, seed, progress=False)
    return [answer for answer in answers if isinstance(answer, MapResult)]
