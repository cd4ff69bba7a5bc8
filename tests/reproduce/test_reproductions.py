"""Every script of the reproductions, on a small part of what its TOML file says."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from dtopk.losses import make_loss
from tests.reproduce import bipartite, circle, convergence, frank_wolfe, letter, multilabel
from tests.reproduce.lines import collect, read_config, read_lines
from tests.reproduce.selection import Split, choose

FOLDER = Path(__file__).parents[2] / "jobs" / "reproduce"
SCRIPTS = {
    "bipartite": bipartite,
    "circle": circle,
    "convergence": convergence,
    "frank-wolfe": frank_wolfe,
    "letter": letter,
    "multilabel": multilabel,
}
"""Each is run below."""
SOLVER = {"tol": 1e-2, "max_epochs": 20, "dtype": "float32"}


def read(name):
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def list_losses(table):
    """Find the losses of a table that may have tables of them."""
    for entry in table.values():
        yield from [entry] if "name" in entry else list_losses(entry)


def test_every_file_has_its_script():
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(SCRIPTS)
    for name, script in SCRIPTS.items():
        assert f"jobs/reproduce/{name}.toml" in str(script.__doc__)


@pytest.mark.parametrize("name", SCRIPTS)
def test_losses_of_a_file_can_be_made(name):
    for entry in list_losses(read(name).get("losses", {})):
        assert make_loss(**entry).name == entry["name"]


def test_letter_gives_a_row_for_each_loss(tmp_path):
    config = read("letter") | {"C": [0.1, 1.0], "losses": {"softmax": {"name": "softmax"}}}
    config["data"] |= {"n_train": 600, "n_validation": 300, "n_test": 300}
    config["solver"] |= SOLVER
    letter.run(config, FOLDER, tmp_path, jobs=1)
    lines = read_lines(tmp_path / "letter.csv")
    assert [int(line["k"]) for line in lines] == config["k"]
    accuracies = [float(line["test"]) for line in lines]
    assert accuracies == sorted(accuracies)
    assert accuracies[0] > 0.3
    assert "| softmax |" in (tmp_path / "letter.md").read_text(encoding="utf-8")


def test_circle_gives_a_row_for_each_loss_and_a_figure(tmp_path):
    config = read("circle") | {"log2_C": [0], "seeds": [0, 1]}
    config["losses"] = {"softmax": config["losses"]["softmax"]}
    config["figure"] |= {"losses": ["softmax"], "columns": 2}
    config["sample"] |= {"n_test": 1000}
    circle.run(config, tmp_path, jobs=1)
    assert len(read_lines(tmp_path / "circle.csv")) == 2 * len(config["k"])
    assert "Bayes rule" in (tmp_path / "circle.md").read_text(encoding="utf-8")
    assert (tmp_path / "circle.png").stat().st_size > 0


def test_circle_has_the_accuracies_of_its_arcs():
    """Arcs are as likely; their largest probabilities are 1, 1, 0.5, 0.7, 1, and with the second
    largest 1, 1, 0.9, 1, 1.
    """
    best = circle.best_accuracies(read("circle")["sample"], [1, 2])
    assert best == pytest.approx({1: 0.84, 2: 0.98})


def test_circle_draws_classes_as_its_arcs_say(rng):
    """Arc 3 of 5, where classes overlap, is between 2/7 and 3/7 of a turn."""
    sample = read("circle")["sample"]
    rows = circle.draw_sample(sample, 20_000, rng)
    turns = np.arctan2(rows.X[:, 1], rows.X[:, 0]) / (2 * np.pi) % 1
    inside = (turns > 2 / 7) & (turns < 3 / 7)
    shares = np.bincount(rows.y[inside], minlength=3) / inside.sum()
    # Five standard deviations of a share of 4,000 rows.
    assert shares == pytest.approx(sample["classes"][2], abs=0.04)
    assert inside.mean() == pytest.approx(0.2, abs=0.015)


def test_multilabel_gives_both_tables(tmp_path):
    config = read("multilabel") | {"C": [0.1, 1.0], "seeds": [0]}
    config["losses"] = {
        "all": {"binary logistic": config["losses"]["all"]["binary logistic"]},
        "one": {"softmax": config["losses"]["one"]["softmax"]},
    }
    config["data"] |= {"n_train": 300, "n_validation": 200}
    config["solver"] |= SOLVER
    multilabel.run(config, FOLDER, tmp_path, jobs=1)
    lines = read_lines(tmp_path / "multilabel.csv")
    assert len(lines) == 2 * len(config["metrics"])
    ranks = [float(line["test"]) for line in lines if line["metric"] == "rank_loss"]
    assert max(ranks) < 0.3


def test_multilabel_shows_one_of_the_labels(rng):
    indicator = rng.random((50, 6)) < 0.5
    indicator[:, 0] |= ~indicator.any(axis=1)
    labels = multilabel.show(indicator, "one", rng)
    assert indicator[np.arange(50), labels].all()
    assert len(np.unique(labels)) > 1


def test_convergence_reaches_its_gap(tmp_path):
    config = read("convergence") | {"levels": [0.1, 1e-9]}
    config["losses"] = {"softmax": config["losses"]["softmax"]}
    config["data"] |= {"n_train": 300, "n_validation": 100, "n_test": 100}
    config["solver"] |= SOLVER
    convergence.run(config, FOLDER, tmp_path)
    lines = read_lines(tmp_path / "convergence.csv")
    gaps = [float(line["gap"]) for line in lines]
    assert min(gaps) >= 0
    assert gaps[-1] <= config["solver"]["tol"]
    assert (tmp_path / "convergence.png").stat().st_size > 0
    assert "| softmax | 1e-09 | >" in (tmp_path / "convergence.md").read_text(encoding="utf-8")


def test_frank_wolfe_traces_every_solver(tmp_path):
    config = read("frank-wolfe") | {"gamma": [0.01], "lambda_n": [100.0], "max_passes": 5}
    config |= {"sets": {"optdigits": config["sets"]["optdigits"] | {"seeds": [0]}}}
    # A test of the lines, and not of how near to the optimum five passes come.
    config |= {"tol": 1e-3, "optimum_tol": 1e-3}
    frank_wolfe.run(config, FOLDER, tmp_path)
    lines = read_lines(tmp_path / "frank-wolfe.csv")
    assert {line["solver"] for line in lines} == set(config["solvers"])
    for solver in config["solvers"]:
        gaps = [float(line["gap"]) for line in lines if line["solver"] == solver]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] >= 0
    assert "optdigits" in (tmp_path / "frank-wolfe.md").read_text(encoding="utf-8")
    assert (tmp_path / "frank-wolfe-optdigits.png").stat().st_size > 0


def test_bipartite_agrees_with_itself(tmp_path):
    config = read("bipartite") | {"m": [12], "entries": 120, "turns": 1}
    bipartite.run(config, tmp_path)
    lines = read_lines(tmp_path / "bipartite.csv")
    # Some rounding errors of numbers of the size of 10.
    assert max(float(line["difference"]) for line in lines) < 1e-13


def test_choose_takes_the_smallest_C_of_those_as_good():
    """All rows are right with any C; of another k the same."""
    rows = Split(
        X=np.eye(3, dtype=np.float32).repeat(4, axis=0), y=np.arange(3, dtype=np.int32).repeat(4)
    )
    choices = choose(rows, rows, 3, {"name": "softmax"}, [0.5, 1.0], [1, 2], SOLVER)
    assert [(choice.k, choice.C, choice.validation) for choice in choices] == [
        (1, 0.5, 1.0),
        (2, 0.5, 1.0),
    ]


def test_collect_does_what_is_missing(tmp_path):
    path, made = tmp_path / "lines.csv", []

    def work(task):
        made.append(task["seed"])
        return [task | {"value": 1}]

    collect(path, ["seed"], [{"seed": 0}], work, jobs=1)
    lines = collect(path, ["seed"], [{"seed": 0}, {"seed": 1}], work, jobs=1)
    assert made == [0, 1]
    assert [line["seed"] for line in lines] == ["0", "1"]


def test_results_of_another_file_are_refused(tmp_path):
    config = tmp_path / "a.toml"
    config.write_text("seed = 0\n", encoding="utf-8")
    assert read_config(config, tmp_path / "out") == {"seed": 0}
    config.write_text("seed = 1\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="must be the same as"):
        read_config(config, tmp_path / "out")
