"""LIBLINEAR, by the Python interface of its authors."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import ArrayPeer, Effort, Fitted, Task

_SPARSE_NODE_BYTES = 16


class Liblinear(ArrayPeer):
    """`train` of LIBLINEAR, without bias term, by its dual solvers; C is ours."""

    title: ClassVar[str] = "LIBLINEAR"
    distribution: ClassVar[str] = "liblinear-official"
    objectives: ClassVar[tuple[str, ...]] = ("hinge", "logistic_ova", "hinge_ova")
    effort: ClassVar[Effort] = Effort(name="tolerance", first=0.1, factor=0.25, runs=8, default=0.1)
    note: ClassVar[str] = "one thread; features are converted to its sparse form within the time"
    item_bytes: ClassVar[int] = 4 + _SPARSE_NODE_BYTES
    """Where no feature is zero: beside what is given a node of index and value for each."""

    _SOLVERS: ClassVar[dict[str, int]] = {"hinge": 4, "logistic_ova": 7, "hinge_ova": 3}
    """-s: Crammer and Singer, and the duals of logistic regression and of the SVM with the plain
    hinge."""

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        from liblinear.liblinearutil import parameter, problem, train
        from scipy.sparse import csr_matrix

        tolerance = "" if task.effort is None else f" -e {task.effort:g}"
        # Its interface compiles the conversion of sparse rows at first use.
        problem(np.zeros(2), csr_matrix(np.eye(2)))
        options = f"-s {self._SOLVERS[task.objective]} -c {task.C!r} -B -1 -q{tolerance}"

        def run() -> Fitted:
            rows = csr_matrix(X, dtype=np.float64)
            model = train(problem(y.astype(np.float64), rows), parameter(options))
            # Classes in the order of their first rows, and weights by feature, then by class.
            n_classes = model.get_nr_class()
            flat = np.ctypeslib.as_array(model.w, (model.get_nr_feature() * n_classes,))
            W = np.zeros((task.shape.n_features, task.shape.n_classes))
            stored = flat.reshape(-1, n_classes)
            W[: len(stored), np.asarray(model.get_labels(), dtype=int)] = stored
            return Fitted(W=W)

        return run


class LiblinearPrimal(Liblinear):
    """Its Newton method for the primal of logistic regression, for many more rows than features."""

    title: ClassVar[str] = "LIBLINEAR, primal"
    objectives: ClassVar[tuple[str, ...]] = ("logistic_ova",)
    # Its default is the fourth of these.
    effort: ClassVar[Effort] = Effort(
        name="tolerance", first=0.64, factor=0.25, runs=8, default=0.01
    )
    _SOLVERS: ClassVar[dict[str, int]] = {"logistic_ova": 0}
