"""`dtopk bench`, on a problem small enough to be instant."""

import json

import pytest

from dtopk.cli import main

SMALL = ["--rows", "300", "--features", "20", "--classes", "12", "--passes", "2"]


def run(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    return stopped.value.code, capsys.readouterr()


def test_bench_measures_the_smooth_hinge_and_softmax(capsys):
    code, captured = run([*SMALL, "--json"], capsys)
    results = json.loads(captured.out)["results"]
    assert code == 0
    assert [(r["loss"], r.get("k"), r.get("gamma")) for r in results] == [
        ("topk_hinge_alpha", 5, 1.0),
        ("softmax", None, None),
    ]
    for result in results:
        assert result["ratio"] > 0
        assert result["epoch_seconds"] >= result["gram_seconds"] + result["inner_seconds"] > 0
        assert result["limit_seconds"] > 0
        assert result["certificate_seconds"] > 0
        assert result["read_seconds"] > 0
        assert result["convert_seconds"] > 0


def test_bench_shows_a_table_for_one_loss(capsys):
    code, captured = run([*SMALL, "--loss", "topk_hinge_beta", "--k", "3"], capsys)
    assert code == 0
    assert "topk_hinge_beta(k=3, gamma=1.0, smoothing=lapin)" in captured.out
    assert "softmax" not in captured.out
    assert "kernel" in captured.err


def test_bench_times_a_loss_of_sets_of_labels(capsys):
    code, captured = run([*SMALL, "--loss", "multilabel_hinge"], capsys)
    assert code == 0
    assert "multilabel_hinge(gamma=1.0), blocks of" in captured.out


@pytest.mark.parametrize("loss", ["truncated_topk_entropy", "calibrated_topk_hinge"])
def test_bench_times_a_loss_that_leaves_classes_out(capsys, loss):
    code, captured = run([*SMALL, "--loss", loss, "--k", "2"], capsys)
    assert code == 0
    assert f"{loss}(k=2" in captured.out


def test_bench_refuses_k_that_the_classes_do_not_allow(capsys):
    code, captured = run(["--rows", "50", "--features", "4", "--classes", "3"], capsys)
    assert code == 2
    assert "k must be between 1 and n_classes - 1 = 2, got 5." in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passes", "0"], "'--passes': 0 is not in the range x>=1"),
        (["--rows", "0"], "'--rows': 0 is not in the range x>=1"),
        (["--rows", str(10**11)], "must fit into the"),
    ],
)
def test_bench_refuses_sizes_that_cannot_be(arguments, message, capsys):
    code, captured = run(arguments, capsys)
    assert code == 2
    assert message in captured.err


def test_bench_suite_measures_a_solver_and_keeps_what_it_has(tmp_path, capsys):
    peer = "tests.benchmarks.counting_peer:GradientDescent"
    arguments = ["--suite", "--shapes", "60x8x5", "--peers", peer, "--threads", "1"]
    arguments += ["--C", "0.5", "--output", str(tmp_path / "out")]
    code, captured = run(arguments, capsys)
    assert (code, sorted(path.name for path in (tmp_path / "out").iterdir())) == (
        0, ["60x8x5.png", "results.json", "table.md"],
    )  # fmt: skip
    assert "gradient descent" in captured.out
    assert f"  softmax, {peer}: " in captured.err
    results = (tmp_path / "out" / "results.json").read_text()
    code, captured = run([*arguments, "--json"], capsys)
    (row,) = json.loads(captured.out)["tables"]["60x8x5"]
    assert (row["problem"], row["solver"]) == ("softmax", "gradient descent")
    assert 0 <= float(row["s"]) < 60
    assert row["with"].endswith("iterations")
    assert (tmp_path / "out" / "results.json").read_text() == results


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "dtopk"], "--peers needs --suite."),
        (["--suite", "--rows", "10"], "--rows does not go with --suite, which measures --shapes."),
        (["--suite", "--shapes", "10"], "shape must be such as '20000x512x100'"),
        (["--suite", "--peers", "vw"], "peer 'vw' is unknown. Available: 'dtopk',"),
        (["--suite", "--time-limit", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_bench_refuses_options_that_do_not_go_together(arguments, message, capsys):
    code, captured = run(arguments, capsys)
    assert code == 2
    assert message in captured.err
