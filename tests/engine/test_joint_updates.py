"""Updates of several models together are those that each makes alone."""

import threading

import numpy as np
import pytest

from dtopk.engine.joint_updates import JointUpdates, count_places
from dtopk.engine.lanes import Lane
from dtopk.losses import make_loss
from dtopk.solvers.sdca import BlockUpdater, RowConversion

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

    def batches(self):
        order = np.random.default_rng(1).permutation(N)
        return [order[first : first + SIZE] for first in range(0, N, SIZE)]

    def work(self):
        for rows in self.batches():
            arguments = (self.X, self.y, self.costs, self.dual, rows, self.shared.W, self.ratio)
            self.values.append(self.shared.update(*arguments))

    def work_alone(self):
        for rows in self.batches():
            arguments = (self.X, self.y, self.costs, self.dual_alone, rows, self.W, self.ratio)
            self.values_alone.append(self.alone.update(*arguments))


def make_updates(n_models, threads=1, n_classes=M):
    conversion = RowConversion(n_features=D, dtype=np.dtype(np.float64))
    return JointUpdates(conversion, n_classes, n_models, SIZE, threads)


def run(updates, models):
    for model in models:
        model.lane.resume()
    while waiting := [model for model in models if model.lane.waiting == "update"]:
        updates.update([model.shared for model in waiting])
        for model in waiting:
            model.lane.resume()
    assert all(model.lane.waiting == "end" and model.lane.error is None for model in models)


@pytest.mark.parametrize("threads", [1, 3])
def test_models_are_updated_as_each_alone(rng, threads):
    updates, problem = make_updates(4, threads), make_problem(rng)
    given = zip(LOSSES, (0.1, 1.0, 10.0), (1.0, 1.5, 3.0), strict=True)
    models = [Model(loss, updates, C, ratio, problem) for loss, C, ratio in given]
    run(updates, models)
    updates.close()
    for model in models:
        model.work_alone()
        np.testing.assert_allclose(model.shared.W, model.W, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.dual, model.dual_alone, rtol=0, atol=1e-12)
        np.testing.assert_allclose(model.values, model.values_alone, rtol=1e-12)
        assert np.abs(model.W).max() > 1e-3


def test_the_number_of_threads_changes_rounding_only(rng):
    problem, weights = make_problem(rng), []
    for threads in (1, 2, 5):
        updates = make_updates(6, threads)
        models = [Model(LOSSES[0], updates, C, 1.0, problem) for C in (0.1, 0.3, 1, 3, 10, 30)]
        run(updates, models)
        updates.close()
        weights.append(np.array([model.shared.W for model in models]))
    np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights[2], weights[0], rtol=0, atol=1e-12)


def test_a_model_that_waits_for_nothing_keeps_its_weights(rng):
    updates, problem = make_updates(2), make_problem(rng)
    idle, busy = (Model(LOSSES[0], updates, 1.0, 1.0, problem) for _ in range(2))
    idle.shared.W[:] = 3.0
    run(updates, [busy])
    np.testing.assert_array_equal(idle.shared.W, np.full((D, M), 3.0))
    assert np.abs(busy.shared.W).max() > 1e-3
    idle.lane.end()
    updates.close()


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
    updates.close()


def test_more_models_than_one_matrix_has_places_for(rng):
    updates, problem = make_updates(2), make_problem(rng)
    models = [Model(LOSSES[0], updates, C, 1.0, problem) for C in (0.1, 1.0, 10.0)]
    assert models[0].shared.stack is models[1].shared.stack
    assert models[2].shared.stack is not models[0].shared.stack
    run(updates, models)
    for model in models:
        model.work_alone()
        np.testing.assert_allclose(model.shared.W, model.W, rtol=0, atol=1e-12)
    updates.close()


@pytest.mark.parametrize(
    ("n_classes", "n_models", "threads", "places"),
    [
        (10, 13, 1, 13),
        (10, 13, 2, 7),
        (10, 100, 1, 25),
        (200, 13, 1, 1),
        (10, 1, 4, 1),
        (10, 6, 0, 6),
    ],
)
def test_weights_lie_side_by_side_where_classes_are_few(n_classes, n_models, threads, places):
    assert count_places(n_classes, n_models, threads) == places


def test_an_error_in_one_models_rows_is_raised_and_no_thread_is_left(rng):
    before = threading.active_count()
    updates, problem = make_updates(3, threads=2), make_problem(rng)
    models = [Model(LOSSES[0], updates, 1.0, 1.0, problem) for _ in range(3)]
    models[1].y = models[1].y[:3]
    with pytest.raises(IndexError):
        run(updates, models)
    for model in models:
        model.lane.end()
    updates.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(("n_models", "threads"), [(17, 16), (9, 8), (5, 2), (3, 8), (60, 2)])
def test_there_is_place_for_no_more_models_than_there_are(rng, n_models, threads):
    updates, problem = make_updates(n_models, threads), make_problem(rng)
    models = [Model(LOSSES[0], updates, 1.0, 1.0, problem) for _ in range(n_models)]
    stacks = {id(model.shared.stack): model.shared.stack for model in models}
    assert sum(stack.n_places for stack in stacks.values()) == n_models
    assert all(stack.n_taken == stack.n_places for stack in stacks.values())
    assert len(stacks) >= min(n_models, threads)
    for model in models:
        model.lane.end()
    updates.close()
