"""MapImputer: a scikit-learn transformer that fills missing cells with their joint mode, with certificates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from certimap.ask.batch import BatchRow, map_rows
from certimap.ask.session import Session
from certimap.core.arguments import shown
from certimap.core.arrays import Flags, Floats
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.core.named import needed
from certimap.core.result import MapResult
from certimap.errors import DataError
from certimap.interop import as_model
from certimap.learn import ChowLiuTree, HiddenChowLiuTree, LearnSPN
from certimap.learn.estimator import DensityEstimator, Seed, draw_seed
from certimap.learn.table import encode, missing_in, read_table, refuse_doubled
from certimap.solvers.request import Request

_NEEDS = "MapImputer needs scikit-learn 1.6 or later: pip install 'certimap[learn]'"
_joblib, _base, _exceptions, _validation = (
    needed(module, _NEEDS)
    for module in ("joblib", "sklearn.base", "sklearn.exceptions", "sklearn.utils.validation")
)
METHODS = {"hclt": HiddenChowLiuTree, "learnspn": LearnSPN, "chow-liu": ChowLiuTree}
ROWS_TOGETHER = 128  # rows per task of the pool; seeds are per task, so that the pool's size changes no answer


class Imputation(NamedTuple):
    """A filled table, with certificates."""

    filled: Any  # the table, of the same type as the input
    # for each row the `MapResult` of its missing cells, with its certificate; None for a complete row. Intervals
    # of numbers (see `MapImputer`) appear as their state numbers.
    results: list[MapResult | None]


class NotFitted(DataError, _exceptions.NotFittedError):
    """Raised when an imputer is used before it is fitted."""


@dataclass(frozen=True, eq=False)
class _Intervals:
    """The intervals of a numeric column: inner edges, and the fill value of each interval."""

    edges: Floats
    fill: Floats

    @classmethod
    def of(cls, values: Floats, n: int) -> _Intervals:
        """Cut at quantiles; intervals without values are dropped, the rest are filled with their medians."""
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, n + 1)[1:-1]))
        edges = edges[edges > values.min()]
        place = np.searchsorted(edges, values, side="right")
        return cls(edges, np.array([np.median(values[place == k]) for k in range(len(edges) + 1)]))

    def place(self, values: Floats) -> Floats:
        """Return the interval number of each value, NaN for NaN."""
        known = ~np.isnan(values)
        return np.where(known, np.searchsorted(self.edges, np.where(known, values, 0.0), side="right"), np.nan)


@dataclass(eq=False, repr=False)
class MapImputer(_base.OneToOneFeatureMixin, _base.TransformerMixin, _base.BaseEstimator):
    """Fill the missing cells of each row with their most probable joint state, given the row's other cells.

    Unlike a cell-by-cell fill, the filled cells are jointly consistent, and `impute` returns a certificate for
    each row: that no other fill is more probable under the model.

    Parameters
    ----------
    model
        How to learn a model from the table: "hclt" (a hidden Chow-Liu tree, which accepts missing cells),
        "learnspn" or "chow-liu" (for which `fit` needs complete rows); an estimator from `certimap.learn`; or a
        model, possibly from another library, whose variables are the columns by name.
    max_levels
        Columns of numbers with more distinct values than this are cut into intervals.
    bins
        The intervals of such a column, of about equal frequency. A missing number is filled with the median of the
        training values in its most probable interval.
    epsilon
        The requested certificate: a fill is at least (1 - epsilon) times as probable as the best. 0 requests the
        best.
    time_limit
        Seconds per row; a row that reaches the limit gets the best fill found, with the certificate earned so far.
    n_jobs
        Processes for rows, as in scikit-learn; None means 1, -1 all processors. The answer does not depend on it.
    random_state
        Seed or generator, for learning and for solvers that sample.

    Attributes
    ----------
    model_
        The model.
    domain_
        Its variables: one per known column, with intervals as the states 0, 1, ...
    seed_
        The seed of the run.
    n_features_in_, feature_names_in_
        The number of columns, and their names if a frame was given.

    Notes
    -----
    NaN, None and pandas' missing values count as missing. Arrays, lists and pandas frames keep their type, dtypes,
    categories and index. A label not seen in `fit` is refused, because the model gives it no probability.

    Examples
    --------
    >>> import numpy as np
    >>> from certimap import MapImputer
    >>> rows = np.array([[0, 0], [1, 1], [0, 0], [1, 1], [0, np.nan], [np.nan, 1]] * 5)
    >>> MapImputer(random_state=0).fit_transform(rows)[-2:]
    array([[0., 0.],
           [1., 1.]])
    """

    model: Any = "hclt"
    _: KW_ONLY
    max_levels: int = 20
    bins: int = 8
    epsilon: float = 0.0
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

        `X` is a 2-D array, a list of rows, or a pandas frame; `y` is ignored. Raises DataError for an unknown
        method, a column without any value, infinite numbers, and input the method cannot take.
        """
        for name, least in (("max_levels", 1), ("bins", 2)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise DataError(f"{name} is {shown(value)}; a whole number from {least} is expected")
        array: Any = _validated(self, X, reset=True)
        columns = _columns(X, array)
        self._names = list(columns)
        self.seed_ = draw_seed(self.random_state)
        self._intervals: dict[str, _Intervals] = {}
        if not isinstance(self.model, str | DensityEstimator):
            given = as_model(self.model)
            self.model_: Model = given
            self.domain_: Domain = _known(given.domain, columns)
            encode({name: columns[name] for name in self.domain_.names}, self.domain_)
            return self
        for name, column in columns.items():
            numbers = _numbers(column)
            if numbers is not None and len(np.unique(known := numbers[~np.isnan(numbers)])) > self.max_levels:
                self._intervals[name] = _Intervals.of(known, self.bins)
        table = self._discrete(columns)
        self.domain_ = read_table(table, kinds=dict.fromkeys(table, "categorical")).domain
        self.model_ = self._learner().fit(table).model_
        return self

    def _learner(self) -> Any:
        """Return an estimator, configured with the domain and the seed."""
        if isinstance(self.model, DensityEstimator):
            return _base.clone(self.model).set_params(domain=self.domain_)
        if self.model not in METHODS:
            raise DataError(f"model is {self.model!r}; {', '.join(METHODS)}, an estimator or a model is expected")
        return METHODS[self.model](progress=False, domain=self.domain_, random_state=self.seed_)

    def _discrete(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the numbers of cut columns by interval numbers."""
        out = dict(columns)
        for name, intervals in self._intervals.items():
            numbers = _numbers(columns[name])
            if numbers is None:
                raise DataError(f"column {name!r} held numbers when the imputer was fitted, and holds labels now")
            out[name] = intervals.place(numbers)
        return out

    def transform(self, X: Any) -> Any:
        """Return `X`, a table with the fitted columns, with its missing cells filled; see `impute`.

        It has the input's type, or the type chosen by `set_output`.
        """
        return self.impute(X).filled

    def impute(self, X: Any) -> Imputation:
        """Return a filled table `X`, with the fitted columns, and each row's result with its certificate.

        Raises NotFitted before `fit`, DataError for other columns and for unknown values, and ImpossibleEvidence
        for a row whose known cells have probability 0 under a given model.
        """
        if not hasattr(self, "model_"):
            raise NotFitted("this MapImputer is not fitted; call fit first")
        array: Any = _validated(self, X, reset=False)
        columns = dict(zip(self._names, _columns(X, array).values(), strict=True))
        table = self._discrete(columns)
        points = encode({name: table[name] for name in self.domain_.names}, self.domain_).points
        missing = missing_in(points)
        rows = np.flatnonzero(missing.any(axis=1))
        distinct, which = np.unique(points[rows], axis=0, return_inverse=True)
        answers = self._answers(distinct)
        results: list[MapResult | None] = [None] * len(points)
        for row, k in zip(rows.tolist(), which.ravel().tolist(), strict=True):
            results[row] = answers[k]
        return Imputation(self._filled(X, array, missing, results), results)

    def _answers(self, points: Points) -> list[MapResult]:
        """Answer distinct rows, in tasks of a fixed size."""
        starts = range(0, len(points), ROWS_TOGETHER)
        seeds = np.random.SeedSequence(self.seed_).generate_state(len(starts), np.uint64).tolist()
        request = Request.of(epsilon=self.epsilon, time_limit=self.time_limit, workers=1)
        delayed = _joblib.delayed
        tasks = [
            delayed(_answer_rows)(self.model_, self.domain_, points[start : start + ROWS_TOGETHER], seed, request)
            for start, seed in zip(starts, seeds, strict=True)
        ]
        parts: list[list[MapResult]] = _joblib.Parallel(n_jobs=self.n_jobs)(tasks)
        return [answer for part in parts for answer in part]

    def _filled(self, X: Any, array: Any, missing: Flags, results: Sequence[MapResult | None]) -> Any:
        """Fill the missing cells with the answers, in a copy of the table."""
        is_frame = hasattr(X, "iloc")
        out: Any = (X if is_frame else array).copy()
        for j, name in enumerate(self._names):
            if name not in self.domain_ or not missing[:, self.domain_.index(name)].any():
                continue
            rows: list[int] = np.flatnonzero(missing[:, self.domain_.index(name)]).tolist()
            answers = [results[row] for row in rows]
            labels: list[Any] = [answer.assignment[name] for answer in answers if answer is not None]
            cut = self._intervals.get(name)
            values = labels if cut is None else [float(cut.fill[label]) for label in labels]
            if is_frame:
                column = X.iloc[:, j].copy()
                column.iloc[rows] = values
                out.isetitem(j, column)
            else:
                for row, value in zip(rows, values, strict=True):
                    out[row, j] = value
        return out


def _validated(imputer: Any, X: Any, *, reset: bool) -> Any:
    """Validate a table with scikit-learn; return it as an array."""
    if hasattr(X, "columns"):
        refuse_doubled(list(X.columns))
    try:
        return _validation.validate_data(imputer, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
    except (TypeError, ValueError) as error:
        raise DataError(" ".join(str(error).split())) from None


def _columns(X: Any, array: Any) -> dict[str, Any]:
    """Return the columns by name (frames) or by number as text (arrays)."""
    if hasattr(X, "iloc"):
        return {str(name): X.iloc[:, j] for j, name in enumerate(X.columns)}
    if hasattr(X, "columns"):
        library = type(X).__module__.partition(".")[0]
        raise DataError(f"a frame of {library} was given; expected pandas frames or arrays")
    return {str(j): array[:, j] for j in range(array.shape[1])}


def _numbers(column: Any) -> Floats | None:
    """Return a numeric column with NaN for missing values; None for other columns."""
    if getattr(getattr(column, "dtype", None), "kind", "O") not in "iuf" or hasattr(column, "cat"):
        return None
    if hasattr(column, "to_numpy"):
        column = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(column, np.float64)


def _known(domain: Domain, columns: Mapping[str, Any]) -> Domain:
    """Return the variables of a model that are columns; refuse unknown columns and real variables."""
    for name in columns:
        domain.index(name)  # QueryError names near misses
    places = [i for i, variable in enumerate(domain) if variable.name in columns]
    real = [domain.names[i] for i in places if not domain.n_states[i]]
    if real:
        raise DataError(f"variable {real[0]!r} of the model is real; expected models of categorical variables")
    return domain.subset(places)


def _answer_rows(model: Model, domain: Domain, points: Points, seed: int, request: Request) -> list[MapResult]:
    """Answer the rows of one task."""
    rows: list[BatchRow] = []
    for k, point in enumerate(points):
        observed = [i for i in range(len(domain)) if point[i] >= 0]
        evidence = domain.subset(observed).decode(point[observed])
        asked = [name for i, name in enumerate(domain.names) if point[i] < 0]
        rows.append(BatchRow(k, lambda asked=asked, evidence=evidence: (asked, evidence), "a row of the table"))
    answers = map_rows(Session(model, request), rows, seed, progress=False)
    return [answer for answer in answers if isinstance(answer, MapResult)]
