"""Draw a Gaussian process with its error band, beside the exact one: ``docs/figures/gaussian_process.png``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from hrf.learn import KernelGaussianProcess
from hrf.report import folder, png, write

Array = NDArray[np.float64]

ROWS, WIDTHS = 400, (32, 1024)
BLUE, GREY, INK = "#0072B2", "#999999", "#222222"


def data() -> tuple[Array, Array]:
    """Return noisy values of a function on an interval, with a gap in which nothing is known."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-4, 4, ROWS)
    x = x[(x < 0.6) | (x > 2.2)]
    return x[:, None], np.sin(2 * x) + 0.3 * x + 0.2 * generator.normal(size=len(x))


def exact(model: KernelGaussianProcess, x: Array, y: Array, new: Array) -> tuple[Array, Array]:
    """Return mean and deviation of the exact process, with the γ, amplitude and noise of the model."""
    scale = (2 * model.features_.gamma_) ** -0.5
    kernel = ConstantKernel(model.amplitude_, "fixed") * RBF(scale, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=model.noise_, optimizer=None).fit(x, y - y.mean())
    mean, deviation = process.predict(new, return_std=True)
    return mean + y.mean(), np.sqrt(deviation**2 + model.noise_)


def draw(axes: Axes, width: int) -> None:
    """Draw data, the process on so many features, and the exact process."""
    x, y = data()
    new = np.linspace(-4, 4, 400)[:, None]
    model = KernelGaussianProcess(
        n_features=width, feature_map="trigonometric", projection="sobol", random_state=0
    ).fit(x, y)
    mean, deviation = model.predict(new, return_std=True)
    axes.plot(x[:, 0], y, ".", color=GREY, markersize=3, label="data")
    axes.fill_between(
        new[:, 0], mean - 1.96 * deviation, mean + 1.96 * deviation, color=BLUE, alpha=0.2, linewidth=0
    )
    axes.plot(new[:, 0], mean, color=BLUE, linewidth=1.6, label=f"{width} features, 95 % band")
    mean, deviation = exact(model, x, y, new)
    for line in (mean, mean - 1.96 * deviation, mean + 1.96 * deviation):
        label = "exact" if line is mean else None
        axes.plot(new[:, 0], line, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), label=label)
    axes.set_title(
        f"{width} features: noise {model.noise_**0.5:.3f} by evidence, 0.2 in truth", loc="left", size=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    axes.set_ylim(-3, 3.5)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_methods.figure", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/figures"), help="folder (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    drawing = Figure(figsize=(11, 3.6), layout="constrained", facecolor="white")
    for axes, width in zip(drawing.subplots(1, 2, sharey=True), WIDTHS, strict=True):
        draw(axes, width)
    write(folder(args.out) / "gaussian_process.png", png(drawing, dpi=120))
    return 0


if __name__ == "__main__":
    sys.exit(main())
