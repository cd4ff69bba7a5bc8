"""Linear probes in PyTorch on the processor: L-BFGS, and SGD over a grid of learning rates."""

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dtopk.benchmarks.peers.base import ArrayPeer, Effort, Fitted, Task, mean_regularization

_BATCH_ROWS = 256
_MOMENTUM = 0.9
_EPOCHS = 100
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""The grid; rows of unit norm take larger rates than those of an image network's features."""


class TorchLbfgs(ArrayPeer):
    """`torch.optim.LBFGS` with the strong Wolfe line search, on all rows at a time.

    The objective is written as ``1/n sum_i L_i + 1/(2 C n) |W|^2``.
    """

    title: ClassVar[str] = "PyTorch, L-BFGS"
    distribution: ClassVar[str] = "torch"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="iterations", first=8)
    note: ClassVar[str] = "by default 1,000 iterations at most, and PyTorch's tolerances"
    _MOST: ClassVar[int] = 1000

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        torch, rows, codes = _load(task, X, y)
        half_lambda = 0.5 * mean_regularization(task)
        iterations = int(task.effort or self._MOST)
        stop: dict[str, Any] = {"max_iter": iterations, "max_eval": 10 * iterations}
        if task.effort is not None:
            stop |= {"tolerance_grad": 0.0, "tolerance_change": 0.0}

        def run() -> Fitted:
            W = torch.zeros(task.shape.n_features, task.shape.n_classes, requires_grad=True)
            optimizer = torch.optim.LBFGS([W], line_search_fn="strong_wolfe", **stop)

            def closure() -> Any:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(rows @ W, codes)
                loss = loss + half_lambda * (W * W).sum()
                loss.backward()
                return loss

            optimizer.step(closure)
            return Fitted(
                W=W.detach().numpy().astype(np.float64),
                facts={self.effort.name: int(optimizer.state[W]["n_iter"])},
            )

        _load_optimizers(torch)
        return run


class TorchSgd(ArrayPeer):
    """The recipe of linear probes: SGD with momentum 0.9, batches of 256 and a cosine schedule.

    The optimizer's weight decay is 1 / (C n_samples), so that it minimises ``1/n sum_i L_i +
    1/(2 C n) |W|^2``. Every learning rate of the grid is trained, and the weights of the least
    objective are kept; it takes a pass over the rows to compute it.
    """

    title: ClassVar[str] = "PyTorch, SGD over 8 learning rates"
    distribution: ClassVar[str] = "torch"
    objectives: ClassVar[tuple[str, ...]] = ("softmax",)
    effort: ClassVar[Effort] = Effort(name="epochs", first=4, default=_EPOCHS)
    note: ClassVar[str] = (
        "time of the whole grid; the best rate's own in brackets; by default 100 epochs; batches "
        "could be fed from disk by hand"
    )

    def prepare_arrays(
        self, task: Task, X: NDArray[np.float32], y: NDArray[np.int32]
    ) -> Callable[[], Fitted]:
        """See :meth:`ArrayPeer.prepare_arrays`."""
        torch, rows, codes = _load(task, X, y)
        weight_decay = mean_regularization(task)
        epochs = int(task.effort or _EPOCHS)

        def train(rate: float) -> Any:
            generator = torch.Generator().manual_seed(0)
            W = torch.zeros(task.shape.n_features, task.shape.n_classes, requires_grad=True)
            optimizer = torch.optim.SGD([W], lr=rate, momentum=_MOMENTUM, weight_decay=weight_decay)
            steps = epochs * math.ceil(len(codes) / _BATCH_ROWS)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            for _ in range(epochs):
                for batch in torch.randperm(len(codes), generator=generator).split(_BATCH_ROWS):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(rows[batch] @ W, codes[batch])
                    loss.backward()
                    optimizer.step()
                    schedule.step()
            return W.detach()

        def objective(W: Any) -> float:
            loss = torch.nn.functional.cross_entropy(rows @ W, codes)
            value = float(loss + 0.5 * weight_decay * (W * W).sum())
            return value if math.isfinite(value) else math.inf

        def run() -> Fitted:
            best: tuple[float, Any, dict[str, float]] = (math.inf, None, {})
            for rate in LEARNING_RATES:
                began = time.perf_counter()
                W = train(rate)
                seconds = time.perf_counter() - began
                value = objective(W)
                if value < best[0] or best[1] is None:
                    best = (value, W, {"learning_rate": rate, "single_seconds": seconds})
            _, W, facts = best
            return Fitted(W=W.numpy().astype(np.float64), facts=facts)

        _load_optimizers(torch)
        return run


def _load(task: Task, X: NDArray[np.float32], y: NDArray[np.int32]) -> tuple[Any, Any, Any]:
    import torch

    torch.set_num_threads(task.threads)
    return torch, torch.from_numpy(X), torch.from_numpy(y.astype(np.int64))


def _load_optimizers(torch: Any) -> None:
    """Take a step of a tiny problem, as the first optimizer of a process imports half of torch."""
    w = torch.zeros(1, requires_grad=True)
    w.sum().backward()
    torch.optim.SGD([w], lr=0.1).step()
