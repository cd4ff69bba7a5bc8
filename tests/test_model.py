"""The model file and what a model predicts."""

import errno
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dtopk.calibration import Calibration
from dtopk.model import MODEL_VERSION, Model, load_model, select_topk

ROOT = Path(__file__).parents[1]


def make_model(**changes):
    """Two features, three classes: scores are (x_0, x_1, x_0 + x_1) + (0, 0, 1)."""
    fields = {
        "W": np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], dtype=np.float32),
        "intercept": np.array([0, 0, 1], dtype=np.float32),
        "classes": np.array(["ant", "bee", "cat"]),
        "loss": "softmax",
        "loss_parameters": {"k": 1},
        "link": "softmax",
        "job": {"version": 1, "model": {"C": 0.5}},
        "certificate": {"relative_gap": 1e-4},
    }
    return Model(**(fields | changes))


def make_calibration(**changes):
    """Let labels into a set whose probability is at least 1/4 or, for more coverage, 1/100."""
    fields = {
        "temperature": 2.0,
        "n_classes": 3,
        "score": "lac",
        "conformal_scores": np.log([4, 100]).astype(np.float32),
        "source": {"split": "val"},
    }
    return Calibration(**(fields | changes))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.npz"
    make_model().save(path)
    return path


def rewrite_header(path, **changes):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["model.json"] = json.dumps(json.loads(members["model.json"]) | changes).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_model_scores_by_hand():
    scores = make_model().decision_function([[2, -1]])
    np.testing.assert_array_equal(scores, [[2, -1, 2 - 1 + 1]])


def test_model_scores_centred_and_scaled_features():
    """(3, 4) less (1, 2), by (2, 1), is (1, 2): scores (1, 2, 3 + 1)."""
    model = make_model(feature_mean=np.array([1.0, 2.0]), feature_scale=np.array([2.0, 1.0]))
    np.testing.assert_array_equal(model.decision_function([[3, 4]]), [[1, 2, 4]])


def test_model_gives_two_classes_two_columns():
    model = Model(
        W=np.eye(2), intercept=np.zeros(2), classes=np.array([3, 7]), loss="topk_hinge_alpha"
    )
    assert model.decision_function(np.ones((5, 2))).shape == (5, 2)
    np.testing.assert_array_equal(model.predict([[0, 1], [1, 0]]), [7, 3])


def test_model_computes_in_the_type_of_its_weights():
    X = np.ones((1, 2), dtype=np.float16)
    assert make_model().decision_function(X).dtype == np.float32
    assert make_model(W=np.ones((2, 3))).decision_function(X).dtype == np.float64


def test_model_names_equal_scores_in_class_order():
    """(2, 2) scores (2, 2, 5); (1, -1) scores (1, -1, 1)."""
    labels, scores = make_model().predict_topk([[2, 2], [1, -1]], k=2)
    np.testing.assert_array_equal(labels, [["cat", "ant"], ["ant", "cat"]])
    np.testing.assert_array_equal(scores, [[5, 2], [1, 1]])
    assert make_model().predict([[1, -1]])[0] == "ant"


def test_topk_selection_equals_a_stable_sort():
    scores = np.random.default_rng(0).integers(0, 5, size=(300, 12)).astype(np.float32)
    for k in range(1, 13):
        np.testing.assert_array_equal(
            select_topk(scores, k), np.argsort(-scores, axis=1, kind="stable")[:, :k]
        )


@pytest.mark.parametrize("k", [0, 4])
def test_model_refuses_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"k must be between 1 and n_classes = 3, got {k}\."):
        make_model().predict_topk([[0, 0]], k=k)


def test_model_probabilities_are_the_softmax():
    """Scores (0, 0, 1): 1 / (2 + e), 1 / (2 + e), e / (2 + e)."""
    expected = np.array([1, 1, np.e]) / (2 + np.e)
    np.testing.assert_allclose(make_model().predict_proba([[0, 0]])[0], expected, rtol=1e-6)


def test_model_probabilities_bear_large_scores():
    probabilities = make_model().predict_proba([[1e4, 0]])
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-6)


def test_model_without_probabilities_says_so():
    model = make_model(loss="topk_hinge_alpha", link="")
    with pytest.raises(ValueError, match="predict_proba must have a loss with probabilities, got"):
        model.predict_proba([[0, 0]])


@pytest.mark.parametrize(("loss", "link"), [("topk_hinge_alpha", ""), ("sparsemax", "sparsemax")])
def test_model_probabilities_are_calibrated_ones_whatever_the_loss(loss, link):
    """Scores (0, 0, 1) by a temperature of 2."""
    model = make_model(loss=loss, link=link, calibration=make_calibration())
    expected = np.array([1, 1, np.exp(0.5)]) / (2 + np.exp(0.5))
    np.testing.assert_allclose(model.predict_proba([[0, 0]])[0], expected, rtol=1e-6)
    assert model.predict_proba([[0, 0]]).dtype == np.float32


def test_model_sets_by_hand():
    """Scores (8, 0, 9) by 2: probabilities of about 0.37, 0.01 and 0.62."""
    model = make_model(loss="topk_hinge_alpha", link="", calibration=make_calibration())
    np.testing.assert_array_equal(model.predict_set([[8, 0]], 0.3), [[True, False, True]])
    model = make_model(calibration=make_calibration(temperature=4.0))
    np.testing.assert_array_equal(model.predict_set([[8, 0]], 0.6), [[True, True, True]])


def test_model_without_a_calibration_has_no_sets():
    with pytest.raises(ValueError, match="model must be calibrated for sets of a coverage"):
        make_model().predict_set([[0, 0]])


def test_model_refuses_a_calibration_of_other_classes():
    with pytest.raises(ValueError, match="must be of the 3 classes of the model, got one of 4"):
        make_model(calibration=make_calibration(n_classes=4))
    with pytest.raises(ValueError, match="must be left out of a multilabel model"):
        make_model(target="multilabel", calibration=make_calibration())


def test_calibration_lies_in_the_model_file(tmp_path):
    model = make_model(calibration=make_calibration())
    model.save(tmp_path / "model.npz")
    again = load_model(tmp_path / "model.npz")
    assert again.calibration.temperature == 2
    np.testing.assert_array_equal(
        again.predict_set([[8, 0]], 0.5), model.predict_set([[8, 0]], 0.5)
    )


def test_calibration_hides_nothing_from_programs_that_do_not_know_it(tmp_path, saved):
    """These read the header and every member named .npy, and take nothing else."""
    make_model(calibration=make_calibration()).save(tmp_path / "calibrated.npz")
    contents = []
    for path in (saved, tmp_path / "calibrated.npz"):
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith((".npy", ".json"))]
            contents.append({name: archive.read(name) for name in names})
    assert contents[0] == contents[1]


def test_model_refuses_a_newer_calibration(tmp_path, monkeypatch):
    monkeypatch.setattr("dtopk.calibration.CALIBRATION_VERSION", 2)
    make_model(calibration=make_calibration()).save(tmp_path / "model.npz")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"must be at most 1, got 2\. A newer dtopk.*model\.npz'"):
        load_model(tmp_path)


def test_model_says_what_it_was_trained_and_chosen_on(tmp_path, saved):
    make_model(trained_on=("train", "val"), chosen_on="val").save(tmp_path / "best.npz")
    again = load_model(tmp_path / "best.npz")
    assert (again.trained_on, again.chosen_on) == (("train", "val"), "val")
    plain = load_model(saved)
    assert (plain.trained_on, plain.chosen_on) == ((), "")
    with zipfile.ZipFile(saved) as archive:
        assert not {"trained_on", "chosen_on"} & set(json.loads(archive.read("model.json")))


def test_model_refuses_another_number_of_features():
    with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 2\).* got \(1, 3\)\."):
        make_model().decision_function([[1, 2, 3]])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")
def test_model_names_the_row_that_is_not_finite(bad):
    with pytest.raises(ValueError, match="X must hold finite numbers, but row 1 has a score"):
        make_model().decision_function([[0, 0], [bad, 0]])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"classes": np.array([10, 20, 30])},
        {"W": np.ones((2, 3)), "intercept": np.zeros(3)},
        {"feature_mean": np.array([0.5, 1.5]), "feature_scale": np.array([2.0, 4.0])},
        {"class_rows": np.array([3, 0, 5])},
        {"calibration": make_calibration()},
    ],
)
def test_model_comes_back_from_its_file(tmp_path, changes):
    model = make_model(**changes)
    model.save(tmp_path / "model.npz")
    loaded = load_model(tmp_path / "model.npz")
    for name in ("W", "intercept", "classes", "feature_mean", "feature_scale", "class_rows"):
        value = getattr(model, name)
        np.testing.assert_array_equal(getattr(loaded, name), value)
        assert value is None or getattr(loaded, name).dtype == value.dtype
    for name in ("loss", "loss_parameters", "link", "job", "certificate"):
        assert getattr(loaded, name) == getattr(model, name)


def test_model_is_found_in_its_run_folder(saved):
    np.testing.assert_array_equal(load_model(saved.parent).W, make_model().W)


def test_model_file_is_an_ordinary_npz(saved):
    with np.load(saved, allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["W"], make_model().W)
        assert json.loads(archive["model.json"])["loss"] == "softmax"


def test_model_loads_with_numpy_and_the_standard_library_alone(saved):
    make_model(calibration=make_calibration()).save(saved)
    script = (
        "import sys, dtopk\n"
        f"model = dtopk.load_model({str(saved)!r})\n"
        "model.predict([[0, 0]]), model.predict_proba([[0, 0]]), model.predict_set([[0, 0]], 0.5)\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(names - set(sys.stdlib_module_names) - {'__main__', 'numpy', 'dtopk'}))\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'storage'}"}
    # -S would leave out numpy; -I the path. Modules that .pth files bring in come before ours.
    before = subprocess.run(
        [sys.executable, "-c", "import sys; print(*{n.partition('.')[0] for n in sys.modules})"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert set(after.stdout.split()) <= set(before.stdout.split())


def test_model_that_is_absent_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"model '.*nowhere\.npz' does not exist"):
        load_model(tmp_path / "nowhere.npz")


def test_model_refuses_a_foreign_file(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, W=np.ones(3))
    with pytest.raises(ValueError, match=r"model\.npz' must be a dtopk model, but is damaged or"):
        load_model(path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.95])
def test_model_refuses_a_file_cut_short(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="must be a dtopk model, but is damaged"):
        load_model(saved)


def test_model_refuses_changed_weights(saved):
    content = bytearray(saved.read_bytes())
    place = content.index(make_model().W.tobytes())
    content[place + 3] ^= 1
    saved.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged.*Bad CRC-32"):
        load_model(saved)


def test_model_refuses_pickles(tmp_path):
    path = tmp_path / "model.npz"
    make_model().save(path)
    with zipfile.ZipFile(path, "a") as archive, archive.open("feature_mean.npy", "w") as member:
        np.lib.format.write_array(member, np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="must hold plain values, got pickled Python objects"):
        load_model(path)


def test_model_refuses_a_newer_version(saved):
    rewrite_header(saved, version=MODEL_VERSION + 1)
    with pytest.raises(ValueError, match=r"must be at most 1, got 2\. A newer dtopk wrote it"):
        load_model(saved)


def test_model_refuses_unlike_shapes():
    with pytest.raises(ValueError, match=r"intercept must have shape \(3,\), got \(2,\)"):
        make_model(intercept=np.zeros(2))


def test_model_saving_keeps_the_old_file_when_the_disk_is_full(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", fail)
    with pytest.raises(OSError, match=r"The disk is full: cannot write: '.*model\.npz'"):
        make_model().save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["model.npz"]


def test_model_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "model.npz").touch()
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*model\.npz'"):
        load_model(tmp_path)
