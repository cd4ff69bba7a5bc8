"""Updates of several models together are those that each makes alone."""

import threading

import numpy as np
import pytest

from dtopk.engine.joint_updates import JointUpdates
from dtopk.engine.lanes import Lane
from dtopk.losses import make_loss
from dtopk.solvers.sdca import BlockUpdater, RowConversion, RowPart

D, M, N, SIZE = 12, 5, 40, 16
LOSSES = [make_loss("softmax"), make_loss("topk_hinge_alpha", k=2), make_loss("sparsemax")]


def make_problem(rng):
    X = rng.normal(size=(N, D)).astype(np.float16)
    return X, rng.integers(0, M, N).astype(np.int32)


class Model:
    """A model that is updated beside others, and its twin that is alone."""

    def __init__(self, loss, updates, C, ratio, problem):
        self.X, self.y = problem
        conversion = RowConversion(n_features=D, dtype=np.dtype(np.float64))
        self.alone = BlockUpdater(loss, conversion, M, SIZE)
        self.shared = updates.make_updater(BlockUpdater(loss, conversion, M, SIZE))
        self.costs, self.ratio = np.full(N, C), ratio
        self.W, self.dual, self.dual_alone = np.zeros((D, M)), np.zeros((N, M)), np.zeros((N, M))
        self.values, self.values_alone = [], []
        self.lane = self.shared.lane = Lane("model", self.work)

    def work(self):
        """Two visits of all rows."""
        for batches in self.visits(self.dual):
            self.values += self.shared.update_all(batches, self.shared.W, self.ratio)

    def work_alone(self):
        for batches in self.visits(self.dual_alone):
            self.values_alone += self.alone.update_all(batches, self.W, self.ratio)

    def visits(self, dual):
        """Yield batches of all rows, each with rows of both halves, in two orders."""
        for seed in (1, 2):
            order = np.random.default_rng(seed).permutation(N)
            yield [
                self.cut(order[first : first + SIZE], dual) for first in range(0, len(order), SIZE)
            ]

    def cut(self, rows, dual):
        half = N // 2
        parts = [(slice(half), rows[rows < half]), (slice(half, N), rows[rows >= half] - half)]
        return [
            RowPart(
                X=self.X[part],
                labels=self.y[part],
                costs=self.costs[part],
                dual=dual[part],
                rows=mine,
            )
            for part, mine in parts
        ]


def make_updates(n_models, n_classes=M):
    conversion = RowConversion(n_features=D, dtype=np.dtype(np.float64))
    return JointUpdates(conversion, n_classes, n_models, SIZE)


def run(updates, models):
    for model in models:
        model.lane.resume()
    while waiting := [model for model in models if model.lane.waiting == "update"]:
        updates.update([model.shared for model in waiting])
        for model in waiting:
            model.lane.resume()
    assert all(model.lane.waiting == "end" and model.lane.error is None for model in models)


def test_models_are_updated_as_each_alone(rng):
    updates, problem = make_updates(4), make_problem(rng)
    given = zip(LOSSES, (0.1, 1.0, 10.0), (1.0, 1.5, 3.0), strict=True)
    models = [Model(loss, updates, C, ratio, problem) for loss, C, ratio in given]
    run(updates, models)
    for model in models:
        model.work_alone()
        np.testing.assert_allclose(model.shared.W, model.W, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.dual, model.dual_alone, rtol=0, atol=1e-12)
        assert len(model.values) == 2 * -(-N // SIZE)
        np.testing.assert_allclose(model.values, model.values_alone, rtol=1e-12)
        assert np.abs(model.W).max() > 1e-3


def test_a_model_that_waits_for_nothing_keeps_its_weights(rng):
    updates, problem = make_updates(2), make_problem(rng)
    idle, busy = (Model(LOSSES[0], updates, 1.0, 1.0, problem) for _ in range(2))
    idle.shared.W[:] = 3.0
    run(updates, [busy])
    np.testing.assert_array_equal(idle.shared.W, np.full((D, M), 3.0))
    assert np.abs(busy.shared.W).max() > 1e-3
    idle.lane.end()


def test_a_place_that_is_left_is_taken_again_at_zero(rng):
    updates, problem = make_updates(1), make_problem(rng)
    first = Model(LOSSES[0], updates, 1.0, 1.0, problem)
    run(updates, [first])
    first.shared.leave()
    second = Model(LOSSES[1], updates, 1.0, 1.0, problem)
    assert second.shared.stack is first.shared.stack
    np.testing.assert_array_equal(second.shared.W, np.zeros((D, M)))
    run(updates, [second])
    second.work_alone()
    np.testing.assert_allclose(second.shared.W, second.W, rtol=0, atol=1e-12)


def test_more_models_than_one_matrix_has_places_for(rng):
    updates, problem = make_updates(2), make_problem(rng)
    models = [Model(LOSSES[0], updates, C, 1.0, problem) for C in (0.1, 1.0, 10.0)]
    assert models[0].shared.stack is models[1].shared.stack
    assert models[2].shared.stack is not models[0].shared.stack
    run(updates, models)
    for model in models:
        model.work_alone()
        np.testing.assert_allclose(model.shared.W, model.W, rtol=0, atol=1e-12)


def test_an_error_in_one_models_rows_is_raised_and_no_thread_is_left(rng):
    before = threading.active_count()
    updates, problem = make_updates(3), make_problem(rng)
    models = [Model(LOSSES[0], updates, 1.0, 1.0, problem) for _ in range(3)]
    models[1].y = models[1].y[:3]
    with pytest.raises(IndexError):
        run(updates, models)
    for model in models:
        model.lane.end()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("n_classes", "n_models", "places"),
    [(10, 13, [13]), (10, 60, [25, 25, 10]), (200, 3, [1, 1, 1]), (300, 2, [1, 1])],
)
def test_weights_lie_side_by_side_where_classes_are_few(n_classes, n_models, places):
    updates = make_updates(n_models, n_classes)
    conversion = RowConversion(n_features=D, dtype=np.dtype(np.float64))
    own = [BlockUpdater(LOSSES[0], conversion, n_classes, SIZE) for _ in range(n_models)]
    stacks = {id(each.stack): each.stack for each in map(updates.make_updater, own)}
    assert [stack.n_places for stack in stacks.values()] == places
    assert all(stack.n_taken == stack.n_places for stack in stacks.values())
