"""A column that only counts the rows is no feature, most likely."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dtopk_storage.ingest import IngestOptions, ingest


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_counts_the_rows_is_warned_of(tmp_path, suffix, first, caplog):
    n_rows = 12
    rng = np.random.default_rng(4)
    table = pa.table(
        {
            "a": rng.standard_normal(n_rows),
            "number": np.arange(first, first + n_rows),
            "backwards": np.arange(n_rows)[::-1],
            "label": np.arange(n_rows) % 2,
        }
    )
    source = tmp_path / f"t{suffix}"
    (pa.csv.write_csv if suffix == ".csv" else pq.write_table)(table, source)
    store = ingest(source, tmp_path / "s", IngestOptions(shuffle=True))
    assert [record.args[0] for record in caplog.records] == ["number"]
    assert f"counts the rows from {first} and" in caplog.text
    assert (store.provenance["first_feature"], store.provenance["last_feature"]) == (
        "a",
        "backwards",
    )


def test_few_rows_count_by_chance(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("a,y\n0,0\n1,1\n2,1\n")
    ingest(tmp_path / "t.csv", tmp_path / "s")
    assert not caplog.records
