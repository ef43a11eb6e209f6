"""Tables of rows in queries: frames of any library, columns that are asked or foreign, labels never seen."""

# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import certimap as cm

ROWS = {
    "xray": ["yes", "no", None],
    "dysp": ["yes", None, "no"],
    "who": [7, 8, 9],
    "lung": ["yes", "no", None],
}
RECORDS = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]


class Polars:
    """A frame with the methods of polars that are used, and no index."""

    def __init__(self, data):
        self.data = data

    @property
    def columns(self):
        return list(self.data)

    def __getitem__(self, name):
        return self.data[name]

    def __len__(self):
        return len(next(iter(self.data.values())))

    def hstack(self, other):
        return Polars({**self.data, **other.data})


@pytest.fixture(scope="module")
def asia(examples):
    return cm.read(examples / "asia.bif")


def tables() -> Iterator[Any]:
    yield RECORDS
    yield Polars(ROWS)
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS)
    yield from (frame, frame.astype({"xray": "category", "lung": "category"}), frame.convert_dtypes())


def test_tables_of_every_kind_are_asked_alike(asia):
    expected = [
        cm.map_query(asia, ["lung", "bronc"], {k: v for k, v in row.items() if k in ("xray", "dysp")})
        for row in RECORDS
    ]
    for table in tables():
        found = cm.map_query(asia, ["lung", "bronc"], table, extra="ignore")
        assert [a.assignment for a in found] == [a.assignment for a in expected]
        assert [a.log_prob for a in found] == [a.log_prob for a in expected]
        assert found.labels == [0, 1, 2]
        joined = found.to_frame(join=table)
        assert list(joined.columns) == [*ROWS, "lung_answer", "bronc", "probability", "certificate"]
        assert list(joined["who"]) == [7, 8, 9]
        assert list(joined["lung_answer"]) == [a.assignment["lung"] for a in expected]
        assert set(joined["certificate"]) == {"exact"}
        if table is not RECORDS and hasattr(joined, "dtypes"):
            assert joined["lung_answer"].dtype == table["lung"].dtype


def test_foreign_columns_and_unseen_labels_are_refused_unless_told(asia):
    with pytest.raises(cm.QueryError, match="'who' is no variable"):
        cm.map_query(asia, ["lung"], RECORDS)
    unseen = [{"xray": "perhaps"}, {"xray": "yes"}]
    with pytest.raises(cm.QueryError, match="row 0: 'perhaps' is no state"):
        cm.map_query(asia, ["lung"], unseen)
    found = cm.map_query(asia, ["lung"], unseen, unknown="missing")
    assert found[0].log_prob == cm.map_query(asia, ["lung"]).log_prob
    assert found[1].log_prob == cm.map_query(asia, ["lung"], unseen[1]).log_prob
    with pytest.raises(cm.SolverError, match="extra is 'drop'; expected 'refuse' or 'ignore'"):
        cm.map_query(asia, ["lung"], unseen, **{"extra": "drop"})
    with pytest.raises(ValueError, match="ength"):
        found.to_frame(join=unseen[:1])


def test_soft_evidence_on_an_asked_column_stays_evidence(asia):
    soft = {"bronc": {"likelihood": [0.9, 0.1]}}
    found = cm.map_query(asia, ["bronc"], [soft, {"bronc": "no"}])
    assert found[0].log_prob == cm.map_query(asia, ["bronc"], soft).log_prob
    assert found[1].log_prob == cm.map_query(asia, ["bronc"]).log_prob


def test_rare_labels_were_pooled_for_these():
    table = {"city": ["a"] * 8 + ["(other)"] * 8, "ok": ["y"] * 8 + ["n"] * 8}
    model = cm.learn.chow_liu(table)
    found = cm.map_query(model, ["ok"], [{"city": "nowhere"}, {"city": "(other)"}])
    assert found[0].log_prob == found[1].log_prob
    assert found[0].assignment == {"ok": "n"}
