"""`dtopk report` of a sweep."""

import json
import re

import pytest

from dtopk.job.report_chart import Line, draw_lines
from tests.cli.test_report_command import Balance

SWEEP = """version = 1
[data]
store = 'small.zarr'
validation = 'test'
evaluate = ['test']
[sweep]
C = [0.01, 0.1]
loss = ['softmax', 'topk_hinge_alpha', 'smooth_hinge_ova']
k = 2
gamma = [0.0, 1.0]
metric = ['top_1', 'top_2']
by_loss = true
[output]
run_dir = 'runs/a'
[tracking]
mlflow = false
"""


@pytest.fixture
def folder(call, store, tmp_path):
    (tmp_path / "job.toml").write_text(SWEEP)
    assert call("sweep", tmp_path / "job.toml").status == 0
    return tmp_path / "runs" / "a"


def cells(page, title):
    """Return the rows of the table that follows a title, without tags."""
    table = page.split(f"<h2>{title}</h2>")[1].split("</table>")[0]
    return [
        [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)
    ]


def test_page_of_a_sweep_shows_settings_rule_and_the_chosen(call, folder, tmp_path):
    result = call("report", folder, "--out", tmp_path / "page.html")
    assert result.status == 0, result.err
    page = (tmp_path / "page.html").read_text()
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    # Links within the page and nothing else.
    assert parser.loaded
    assert all(f'id="{link[1:]}"' in page for link in parser.loaded if link.startswith("#"))
    assert all(link.startswith("#") for link in parser.loaded)
    written = json.loads((folder / "sweep.json").read_text())
    header, *rows = cells(page, "All settings")
    assert header[:5] == ["loss", "C", "top-1", "top-2", "top-3"]
    assert [float(row[1]) for row in rows] == [each["C"] for each in written["settings"]]
    for row, each in zip(rows, written["settings"], strict=True):
        assert row[2:4] == [f"{100 * each[metric]:.2f}%" for metric in ("top_1", "top_2")]
        assert row[header.index("passes")] == f"{each['epochs']:,}"
    best = {row[0]: row for row in cells(page, "Chosen")[1:]}
    assert set(best) == {"top-1", "top-2"}
    for metric, row in best.items():
        found = written["best"][metric.replace("-", "_")]
        assert row[2] == f"{100 * found['value']:.2f}%"
        assert row[1].startswith(found["loss"])
    assert "of equal ones the first with the smallest C" in page
    assert len(cells(page, "Left out")) == 2
    assert "gamma must be above 0" in page
    assert page.count('class="ring') == 2
    for title in ("Losses, each at its best C", "Gap by epoch", "Certificate", "Most confused on"):
        assert title in page, title


def test_uncertified_settings_stand_out(call, folder, tmp_path):
    path = folder / "sweep.json"
    fields = json.loads(path.read_text())
    fields["settings"][0] |= {"certified": False, "gap": 0.25, "top_1": None}
    path.write_text(json.dumps(fields))
    assert call("report", folder, "--out", tmp_path / "page.html").status == 0
    page = (tmp_path / "page.html").read_text()
    assert '<span class="bad">2.5e-01</span>' in page
    assert "1 of them are not certified to 0.001" in page
    assert cells(page, "All settings")[1][2] == "none"


def test_a_sweep_that_is_not_done_or_not_alone_is_refused(call, folder, tmp_path):
    page = tmp_path / "page.html"
    result = call("report", folder, folder, "--out", page)
    assert result.status == 2
    assert "RUN must be one sweep, or any number of runs, got the sweep" in result.err
    path = folder / "sweep.json"
    fields = json.loads(path.read_text())
    del fields["settings"][0]["C"]
    path.write_text(json.dumps(fields))
    result = call("report", folder, "--out", page)
    assert result.status == 2
    assert "sweep.json' must be as dtopk wrote it" in result.err
    path.unlink()
    result = call("report", folder, "--out", page)
    assert result.status == 2
    assert "must have a 'sweep.json', but it did not come to its end" in result.err
    assert not page.exists()


def test_values_of_c_lie_by_their_logarithms():
    chart = draw_lines(
        [Line(label="a", color=7, points=[(0.01, 0), (0.1, 1), (1, 2)], ringed=(0.1, 1))],
        x_label="C", y_label="y", log_x=True,
    )  # fmt: skip
    places = [
        float(point.split(",")[0]) for point in re.search(r'points="([^"]*)"', chart)[1].split()
    ]
    assert places[1] == pytest.approx((places[0] + places[2]) / 2, abs=0.1)
    ring = re.search(r'class="ring c1" cx="([^"]*)"', chart)
    assert float(ring[1]) == places[1]
    # Of more lines than colours the others have hollow dots.
    assert chart.count('class="dot c1 hollow"') == 3
