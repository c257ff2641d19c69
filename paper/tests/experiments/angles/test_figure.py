import io

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from rich.console import Console

from hrf_paper.experiments.angles import EXPERIMENT, AnglesSettings, Curves, curves, draw, errors_table, parts
from hrf_paper.experiments.experiment import run
from hrf_paper.experiments.plotting import COLOURS
from hrf_paper.report import grid
from hrf_paper.runner import drawing

SETTINGS = AnglesSettings(radius=1.0, dim=3, features=68, draws=5, seed=9)


@pytest.fixture(scope="module")
def results():
    return run(parts(SETTINGS))


@pytest.fixture(scope="module")
def result(results) -> Curves:
    return curves(SETTINGS, results)


def printed(result: Curves, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(grid(errors_table(result)))
    return console.file.getvalue().splitlines()


def test_figure_shows_every_curve(result, results):
    content = drawing(EXPERIMENT, SETTINGS, results)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = matplotlib.image.imread(io.BytesIO(content))[..., :3]
    assert pixels.shape[1] > 1000
    assert np.allclose(pixels[0, 0], 1)
    left = pixels[:, : int(0.8 * pixels.shape[1])]  # without the legend, which shows all colours anyway
    for curve in result.curves:
        near = np.abs(left - to_rgb(COLOURS[curve.name])).max(-1) < 0.02
        assert near.sum() > 200, curve.name


def test_lines_of_the_figure_are_the_exact_errors(result):
    lines = {line.get_label().split("\n")[0]: line for line in draw(result).axes[0].lines}
    for curve in result.curves:
        line = lines[f"{curve.name}, fitted" if curve.fitted else curve.name]
        assert np.allclose(line.get_xdata(), result.angles)
        assert np.allclose(line.get_ydata(), curve.exact, rtol=1e-12, atol=1e-11)


def test_figure_keeps_zeros_off_the_log_scale(result):
    axes = draw(result).axes[0]
    low, high = axes.get_ylim()
    largest = max(curve.largest for curve in result.curves)
    smallest = min(min(curve.empirical[1:-1]) for curve in result.curves)
    assert 0 < low < smallest
    assert high > largest


def test_table_marks_the_smallest_of_each_column(result):
    rows = {line.split("  ")[0].strip(): line for line in printed(result) if "." in line}
    header = next(line for line in printed(result) if line.startswith("estimator"))
    assert header.split() == ["estimator", "width", "FLOPs", "0", "π/4", "π/2", "3π/4", "π", "max", "at", "θ"]
    columns = [10 * k * 4 for k in range(5)]
    for curve in result.curves:
        cells = rows[curve.name].removeprefix(curve.name).split()
        assert cells[0] == str(curve.width)
        for cell, k in zip(cells[2:7], columns, strict=True):
            smallest = min(other.exact[k] for other in result.curves)
            assert cell.endswith("*") == (curve.exact[k] <= max(smallest * (1 + 1e-9), 1e-12))
        smallest = min(other.largest for other in result.curves)
        assert cells[7].endswith("*") == (curve.largest <= smallest * (1 + 1e-9))


def test_a_narrow_table_keeps_its_numbers(result):
    wide, narrow = (
        [word for line in printed(result, width)[3:-1] for word in line.split() if word[0].isdigit()]
        for width in (200, 71)
    )
    assert len(wide) >= 7 * 8
    assert narrow == wide
