"""The suite's problems: their shapes, their rows, and the objective that judges weights."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from dtopk.benchmarks.problems import (
    OBJECTIVES,
    ProblemData,
    Shape,
    default_shapes,
    evaluate_primal,
    parse_shape,
)
from dtopk.losses import make_loss
from dtopk.testing import draw_pieces
from dtopk.testing.features import PIECE_ROWS
from dtopk_storage import open_store

LETTER = Path(__file__).parents[2] / "jobs" / "data" / "letter.npz"


def rows_of(batches):
    X, y = zip(*batches, strict=True)
    return np.concatenate(X), np.concatenate(y)


def test_shape_says_rows_features_and_classes():
    shape = parse_shape("20000x512x100")
    assert (shape.n_samples, shape.n_features, shape.n_classes) == (20_000, 512, 100)
    assert (shape.name, shape.memory_limit) == ("20000x512x100", 0)


def test_shape_of_a_store_has_a_limit_of_memory_and_float16_features():
    shape = parse_shape("1000x50x4@40kB")
    assert shape.memory_limit == 40_000
    assert shape.store_bytes == 1000 * 50 * 2
    assert "a store of 100,000 bytes in 40,000 bytes" in shape.title


def test_default_shapes_can_be_read():
    names = [parse_shape(text).name for text in default_shapes()]
    assert names[0] == "20000x512x100"
    assert parse_shape("letter").name in names


def test_letter_has_its_known_sizes():
    shape = parse_shape("letter")
    assert (shape.n_samples, shape.n_features, shape.n_classes) == (16_000, 16, 26)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("20000x512", "shape must be such as '20000x512x100'"),
        ("100x4x2", "shape must have 3 classes or more"),
        ("10x4x20", "no fewer rows than classes, got '10x4x20'"),
        ("100x4x5@big", "memory of shape must be 'auto' or a size above 0"),
    ],
)
def test_shape_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_shape(text)


def test_pieces_of_features_are_unit_rows_that_share_their_means():
    pieces = list(draw_pieces(PIECE_ROWS + 5, 40, 3, seed=1))
    assert [len(y) for _, y in pieces] == [PIECE_ROWS, 5]
    np.testing.assert_allclose(np.linalg.norm(pieces[0][0][:100], axis=1), 1, rtol=1e-6)
    (first, _), *_ = draw_pieces(PIECE_ROWS, 40, 3, seed=1)
    np.testing.assert_array_equal(first, pieces[0][0])


def test_rows_to_train_on_and_rows_held_out_follow_each_other(tmp_path):
    shape = Shape(name="s", n_samples=40, n_features=6, n_classes=3)
    data = ProblemData.write(shape, tmp_path)
    ((X, y),) = draw_pieces(48, 6, 3, seed=0)
    np.testing.assert_array_equal(data.load_training()[0], X[:40])
    np.testing.assert_array_equal(data.load_training()[1], y[:40])
    held_out = rows_of(data.held_out_batches())
    np.testing.assert_array_equal(held_out[0], X[40:])
    np.testing.assert_array_equal(held_out[1], y[40:])
    assert not data.is_store


def test_rows_of_a_shape_with_a_limit_lie_in_a_store(tmp_path):
    shape = Shape(name="s", n_samples=40, n_features=6, n_classes=3, memory_limit=1000)
    data = ProblemData.write(shape, tmp_path)
    ((X, y),) = draw_pieces(48, 6, 3, seed=0)
    assert open_store(data.store_path).n_samples == 40
    read = rows_of(data.training_batches())
    np.testing.assert_array_equal(read[0], X[:40].astype(np.float16))
    np.testing.assert_array_equal(read[1], y[:40])
    np.testing.assert_array_equal(rows_of(data.held_out_batches())[0], X[40:])


def write_npz(path, X, y):
    path.parent.mkdir(exist_ok=True)
    np.savez(path, X=X, y=y)
    return parse_shape(str(path))


def test_rows_of_a_file_are_divided_by_their_largest_and_the_last_fifth_held_out(tmp_path):
    X, y = np.arange(20.0).reshape(10, 2) - 20, np.arange(10) % 3
    shape = write_npz(tmp_path / "f.npz", X, y)
    assert (shape.n_samples, shape.n_classes) == (8, 3)
    data = ProblemData.write(shape, tmp_path)
    order = np.random.default_rng(0).permutation(10)
    np.testing.assert_allclose(data.load_training()[0], X[order[:8]] / 20, rtol=1e-6)
    np.testing.assert_array_equal(data.load_training()[1], y[order[:8]])
    np.testing.assert_array_equal(rows_of(data.held_out_batches())[1], y[order[8:]])


def test_file_sorted_by_class_has_rows_of_every_class_on_both_sides(tmp_path):
    y = np.repeat(np.arange(4), 50)
    data = ProblemData.write(write_npz(tmp_path / "f.npz", np.ones((200, 2)), y), tmp_path)
    assert set(data.load_training()[1]) == set(rows_of(data.held_out_batches())[1]) == set(range(4))


def test_letter_keeps_its_published_split_under_any_name(tmp_path):
    with np.load(LETTER) as arrays:
        X, y = arrays["X"], arrays["y"]
    shape = write_npz(tmp_path / "copy.npz", X, y)
    data = ProblemData.write(shape, tmp_path)
    np.testing.assert_array_equal(data.load_training()[1], y[:16_000])
    np.testing.assert_array_equal(rows_of(data.held_out_batches())[1], y[16_000:])


def test_files_of_one_name_are_told_apart_by_what_they_hold(tmp_path):
    X, y = np.eye(10), np.arange(10) % 3
    first = write_npz(tmp_path / "p" / "data.npz", X, y)
    other_X = write_npz(tmp_path / "q" / "data.npz", 2 * X, y)
    other_y = write_npz(tmp_path / "r" / "data.npz", X, y[::-1])
    assert len({first.name, other_X.name, other_y.name}) == 3
    assert write_npz(tmp_path / "s" / "data.npz", X, y).name == first.name
    assert first.title == other_X.title == "data: 8 rows, 10 features, 3 classes"


@pytest.mark.parametrize("limit", [0, 1000])
def test_drawn_rows_that_lack_a_class_are_refused(tmp_path, limit):
    """20 draws of 20 classes leave some of them out."""
    shape = Shape(name="s", n_samples=20, n_features=2, n_classes=20, memory_limit=limit)
    message = r"every class must have a row to train on, but \d+ of 20 have none in shape 's'"
    with pytest.raises(ValueError, match=message):
        ProblemData.write(shape, tmp_path)


def test_rows_of_a_file_that_lack_a_class_are_refused(tmp_path):
    shape = write_npz(tmp_path / "f.npz", np.eye(10), np.array([0, 2] * 5))
    message = f"but 1 of 3 have none in shape '{shape.name}', the first of them class 1."
    with pytest.raises(ValueError, match=re.escape(message)):
        ProblemData.write(shape, tmp_path)


def test_primal_is_that_of_its_definition():
    """x = (1, 2), y = 0, W = [[1, 0, 0], [0, 1, 0]]: u = (1, 2, 0).

    The softmax loss is log(1 + e + 1/e), and |W|^2 = 2.
    """
    W = np.array([[1.0, 0, 0], [0, 1, 0]])
    batch = (np.array([[1.0, 2.0]], np.float32), np.array([0], np.int32))
    found = evaluate_primal(make_loss("softmax"), iter([batch, batch]), 3.0, W)
    assert found == pytest.approx(2 * 3 * math.log(1 + math.e + 1 / math.e) + 1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_has_a_loss(name):
    loss = OBJECTIVES[name].make_loss()
    assert loss.convex
    assert loss.describe().items() >= OBJECTIVES[name].parameters.items()
