"""Spark MLlib, on the threads of this machine."""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import (
    WARM_UP_ROWS,
    Effort,
    Fitted,
    Peer,
    Task,
    mean_regularization,
)
from dtopk.benchmarks.problems import ProblemData
from dtopk.engine.memory import free_memory

_NEVER = 1e-12
_SHARE_OF_FREE = 0.6
_COLUMN = "features"
_PIECE_ROWS = 2048


class SparkLogistic(Peer):
    """LogisticRegression(family="multinomial", standardization=False) of pyspark.ml.

    regParam = 1 / (C n_samples): it minimises ``1/n sum_i L_i + regParam/2 |W|^2``.
    """

    title: ClassVar[str] = "Spark MLlib LogisticRegression"
    distribution: ClassVar[str] = "pyspark"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=8)
    note: ClassVar[str] = (
        "local mode; its start, loading and caching the rows are not counted; memory with that of "
        "the Java machine, which grows as it is let"
    )
    item_bytes: ClassVar[int] = 8

    def prepare(self, task: Task, data: ProblemData, stack: ExitStack) -> Callable[[], Fitted]:
        """See :meth:`Peer.prepare`; Spark is started, caches the rows and compiles here."""
        from pyspark.ml.classification import LogisticRegression

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dtopk-spark-")))
        spark = _start(task.threads, folder)
        stack.callback(spark.stop)
        X, y = data.load_training()
        frame = _load(spark, X, y, folder, task.threads)
        options: dict[str, Any] = {}
        if task.effort is not None:
            options = {"maxIter": int(task.effort), "tol": _NEVER}
        estimator = LogisticRegression(
            family="multinomial",
            regParam=mean_regularization(task),
            elasticNetParam=0.0,
            fitIntercept=False,
            standardization=False,
            featuresCol=_COLUMN,
            **options,
        )
        few = frame.limit(WARM_UP_ROWS)
        estimator.copy({estimator.maxIter: 3}).fit(few)

        def run() -> Fitted:
            model = estimator.fit(frame)
            W = np.array(model.coefficientMatrix.toArray(), dtype=np.float64).T
            return Fitted(W=np.ascontiguousarray(W), facts={self.effort.name: _iterations(model)})

        return run


def _start(threads: int, folder: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master(f"local[{threads}]")
        .appName("dtopk")
        .config("spark.driver.memory", f"{int(free_memory() * _SHARE_OF_FREE) >> 20}m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _load(
    spark: Any, X: NDArray[np.float32], y: NDArray[np.int32], folder: Path, threads: int
) -> Any:
    """Cache the rows as vectors in Spark's memory, by way of Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql.functions import col

    path = folder / "rows.parquet"
    schema = pa.schema([("label", pa.float64()), (_COLUMN, pa.list_(pa.float64()))])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(y), _PIECE_ROWS):
            rows = X[start : start + _PIECE_ROWS].astype(np.float64)
            offsets = np.arange(len(rows) + 1, dtype=np.int32) * X.shape[1]
            features = pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()))
            labels = pa.array(y[start : start + _PIECE_ROWS].astype(np.float64))
            writer.write_table(pa.table([labels, features], schema=schema))
    stored = spark.read.parquet(str(path)).repartition(threads)
    frame = stored.select(col("label"), array_to_vector(col(_COLUMN)).alias(_COLUMN)).cache()
    frame.count()
    return frame


def _iterations(model: Any) -> int:
    return len(model.summary.objectiveHistory) - 1
