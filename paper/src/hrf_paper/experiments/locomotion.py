"""A quadruped on stepping stones, with attention in its policy (paper, section on robotics, figure on the left)."""

from __future__ import annotations

import base64
import math
import statistics
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hrf.report import number
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Runs, Table
from hrf_paper.experiments.plotting import GREY, bare, canvas, headline, note
from hrf_paper.requirements import require

if TYPE_CHECKING:
    from hrf_paper.locomotion.training import TrainedPolicy


# What the paper says about the step-stone task; it prints curves, and no numbers but these.

FEWER_FLOPS = 3.0  # of the hybrid with m = n = 8 against FAVOR+ with m = 256
RUNS = 5


# Train a policy per method and run, walk over unseen stones, and keep what one of them looks at.

HYBRID, _BASELINE, _SMALL = "HRF-A (8, 8)", "FAVOR+ 256", ("FAVOR+ 58", "Trig 58")
METHODS = ("exact", _BASELINE, _SMALL[0], HYBRID, _SMALL[1], "uniform", "blind")
FRAMES = f"frames, {HYBRID}"
_FIRST_FIELD = 1_000  # seeds of the unseen fields
_FRAMES = 6


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes of `hrf_paper.locomotion.LocomotionTraining`, which documents them."""

    rehearsals: int = 40
    walks: int = 3
    rehearsal_pairs: int = 12
    walk_pairs: int = 4
    walk_distance: float = 2.0
    judge_every: int = 10
    judged_fields: int = 3


@dataclass(frozen=True)
class LocomotionSettings:
    """Trainings, and the fields to walk after them.

    Attributes:
        training: sizes of every training.
        methods: the rows.
        runs: trainings per method, each with its own seed.
        fields: unseen fields of 4 m that every trained policy walks over.
        seed: of the first run; the other runs follow.
    """

    training: TrainingSizes = field(default_factory=TrainingSizes)
    methods: tuple[str, ...] = METHODS
    runs: int = 3
    fields: int = 16
    seed: int = 0


def key(method: str, run: int) -> str:
    """Return the name of a part."""
    return f"{method}, run {run}"


def parts(settings: LocomotionSettings) -> dict[str, Part]:
    """Return one training per method and run, and the frames of the first hybrid."""
    require("the experiment locomotion", ("gymnasium", "numba", "pybullet"))
    work: dict[str, Part] = {
        key(method, run): partial(_trained, settings, method, run)
        for run in range(settings.runs)
        for method in settings.methods
    }
    return work | {FRAMES: partial(_frames, settings)}


def _trained(settings: LocomotionSettings, method: str, run: int) -> dict[str, Any]:
    """Train, walk over unseen fields, and count FLOPs; a training that is not finite says so."""
    from hrf_paper.locomotion.policy import ImplicitAttentionPolicy
    from hrf_paper.locomotion.training import walks

    trainer = _trainer(settings, method, run)
    policy = ImplicitAttentionPolicy(trainer.training.policy)
    counted = {"flops": policy.flops(), "ranking_flops": policy.ranking_flops()}
    try:
        trained = trainer.trained()
        found = walks(trained, range(_FIRST_FIELD, _FIRST_FIELD + settings.fields))
    except FloatingPointError as error:
        return counted | {"diverged": str(error), "curve": _curve(trainer.history)}
    return counted | {
        "diverged": "",
        "curve": _curve(trainer.history),
        "returns": [walk.score for walk in found],
        "crossed": [walk.crossed for walk in found],
        "timings": {"training CPU seconds": trainer.history[-1]["seconds"]},
    }


def _curve(history: list[dict[str, float]]) -> list[list[float]]:
    """Return iteration and return of each point."""
    return [[entry["iteration"], entry["return"]] for entry in history]


def _trainer(settings: LocomotionSettings, method: str, run: int) -> Any:
    from hrf_paper.locomotion.policy import PolicyConfig
    from hrf_paper.locomotion.training import LocomotionTrainer, LocomotionTraining

    config = PolicyConfig(method=method, seed=settings.seed + run)
    report = partial(print, f"{key(method, run)}:", flush=True)
    return LocomotionTrainer(LocomotionTraining(config, **vars(settings.training)), report=report)


def _frames(settings: LocomotionSettings) -> dict[str, Any]:
    """Return images of an episode with the patches that were kept, evenly over its decisions."""
    from hrf_paper.locomotion.replay import looks

    trained: TrainedPolicy = _trainer(settings, HYBRID, 0).trained()
    seen = looks(trained, _FIRST_FIELD)
    chosen = np.linspace(0, len(seen) - 1, _FRAMES + 2).astype(int)[1:-1]
    return {
        "frames": [
            {
                "x": seen[i].x,
                "depth": base64.b64encode((255 * seen[i].depth).astype(np.uint8).tobytes()).decode(),
                "kept": base64.b64encode(np.packbits(seen[i].kept).tobytes()).decode(),
            }
            for i in chosen
        ],
        "shape": list(seen[0].depth.shape),
    }


# The paper's five runs.
FULL = LocomotionSettings(
    TrainingSizes(rehearsals=200, walks=100, walk_pairs=16, walk_distance=4.0), runs=RUNS, fields=100
)
SCALED = LocomotionSettings()
QUICK = replace(
    SCALED,
    training=TrainingSizes(
        rehearsals=2,
        walks=1,
        rehearsal_pairs=2,
        walk_pairs=1,
        walk_distance=1.0,
        judge_every=2,
        judged_fields=1,
    ),
    methods=("exact", _BASELINE, HYBRID, "blind"),
    runs=1,
    fields=2,
)


# Outcomes of a method over its runs, and frames of an episode, out of the parts.


@dataclass(frozen=True)
class Outcome(Runs):
    """A method after training: mean return over the unseen fields, one number per run that did not diverge.

    Attributes:
        crossed: share of the unseen fields that were crossed, likewise.
        diverged: the number of runs that were not finite.
        flops: per decision.
        ranking_flops: per decision, of the ranking alone.
    """

    crossed: list[float]
    diverged: int
    flops: int
    ranking_flops: int

    @property
    def share(self) -> str:
        """The share of crossed fields over all runs."""
        return f"{statistics.fmean(self.crossed):.0%}" if self.crossed else "diverged"


def outcome(settings: LocomotionSettings, results: Results, method: str) -> Outcome:
    """Collect the runs of a method."""
    found = [results[key(method, run)] for run in range(settings.runs)]
    whole = [part for part in found if not part["diverged"]]
    return Outcome(
        [statistics.fmean(part["returns"]) for part in whole],
        2,
        [statistics.fmean(part["crossed"]) for part in whole],
        len(found) - len(whole),
        found[0]["flops"],
        found[0]["ranking_flops"],
    )


def curves(settings: LocomotionSettings, results: Results, method: str) -> NDArray[np.float64]:
    """Return the points of the curves, ``(runs, points, 2)``: iteration and return; diverged runs are left out."""
    found = [results[key(method, run)] for run in range(settings.runs)]
    return np.array([part["curve"] for part in found if not part["diverged"]])


class Frame(NamedTuple):
    """What a policy saw.

    Attributes:
        x: place of the trunk in metres.
        depth: images, ``(2, 24, 32)``.
        kept: which of their pixels were read out.
    """

    x: float
    depth: NDArray[np.float32]
    kept: NDArray[np.bool_]


def frames(results: Results) -> list[Frame]:
    """Return the stored frames."""
    part = results[FRAMES]
    shape = tuple(part["shape"])
    found = []
    for stored in part["frames"]:
        depth = np.frombuffer(base64.b64decode(stored["depth"]), np.uint8).reshape(shape) / 255
        bits = np.unpackbits(np.frombuffer(base64.b64decode(stored["kept"]), np.uint8))
        found.append(Frame(stored["x"], depth.astype(np.float32), bits.reshape(shape) == 1))
    return found


# Returns, crossed fields and FLOPs of all methods.


def tables(settings: LocomotionSettings, results: Results) -> list[Table]:
    """Show what each method reaches, and what a decision costs."""
    return [_reached(settings, results)]


def _reached(settings: LocomotionSettings, results: Results) -> Table:
    rows = []
    for method in settings.methods:
        found = outcome(settings, results, method)
        seconds = [
            part["timings"].get("training CPU seconds", 0.0)
            for part in (results[key(method, run)] for run in range(settings.runs))
        ]
        rows.append(
            (
                method,
                number(found.flops, grouped=True),
                number(found.ranking_flops, grouped=True),
                found.text,
                found.share,
                f"{found.diverged} of {settings.runs}",
                f"{statistics.fmean(seconds):.0f}",
            )
        )
    return Table(
        f"{settings.fields} unseen fields of 4 m per run, {settings.runs} runs",
        ("attention", "FLOPs", "ranking alone", "return", "crossed", "diverged", "CPU seconds"),
        rows,
        caption="FLOPs per decision. A return of about 4 is a field that is crossed without a step beside the stones; "
        '± is the 95 % interval of the mean over runs. "uniform" reads all patches, "blind" none. FAVOR+ 58 and Trig '
        "58 have as many projections as the FLOPs of HRF-A (8, 8) allow. CPU seconds are those of one training.",
    )


# The paper's statements on the step-stone task, judged by returns on unseen fields and FLOPs per decision.

_SIMILAR = 0.95


def claims(settings: LocomotionSettings, results: Results) -> list[Claim]:
    """Judge quality at fewer FLOPs, divergence and attention to gaps, and say what the task itself can tell."""
    found = {method: outcome(settings, results, method) for method in settings.methods}
    judged = [_quality(found), _looks_at_gaps(frames(results))]
    if any(name in found for name in _SMALL):
        judged.insert(1, _diverges(settings, found))
    return [*judged, _needs_sight(found), _cheapest(found)]


def _quality(found: dict[str, Outcome]) -> Claim:
    hybrid, baseline = found[HYBRID], found[_BASELINE]
    ratio = baseline.flops / hybrid.flops
    similar = bool(hybrid.values) and not hybrid.mean < _SIMILAR * baseline.mean
    half = (baseline.flops - baseline.ranking_flops + baseline.ranking_flops / 2) / hybrid.flops
    return Claim(
        claim="The angular hybrid with m = n = 8 is as good as FAVOR+ with 256 projections, with 3 times fewer FLOPs.",
        paper=f"similar returns, {FEWER_FLOPS:g}× fewer FLOPs",
        ours=f"return {hybrid.text} against {baseline.text}, {ratio:.1f}× fewer FLOPs per decision",
        hits=[similar, ratio >= FEWER_FLOPS],
        cases="parts of the statement",
        criterion="the mean return is at least 95 % of that of FAVOR+; FLOPs are those of a whole decision",
        sentence=f"{HYBRID}: return {hybrid.text}, {hybrid.share} of the fields crossed, "
        f"{number(hybrid.flops, grouped=True)} FLOPs per decision; {_BASELINE}: {baseline.text}, {baseline.share}, "
        f"{number(baseline.flops, grouped=True)}. A projection gives FAVOR+ two features; with 256 features instead of "
        f"256 projections the hybrid would need {half:.1f} times fewer FLOPs. Mean returns of the runs: "
        f"{_listed(hybrid)} against {_listed(baseline)}; ± is the 95 % interval of their mean.",
    )


def _diverges(settings: LocomotionSettings, found: dict[str, Outcome]) -> Claim:
    names = [name for name in _SMALL if name in found]
    blind = found["blind"].mean
    failed = [
        hit
        for name in names
        for hit in [True] * found[name].diverged + [r <= blind for r in found[name].values]
    ]
    listed = "; ".join(
        f"{name}: {found[name].diverged} of {settings.runs} runs not finite, return {found[name].text}, "
        f"{found[name].share} crossed"
        for name in names
    )
    return Claim(
        claim="Regular features of the hybrid's size do not train: variance makes the loss NaN (said of sweeping).",
        paper="five configurations diverge",
        ours=f"{sum(failed)} of {len(failed)} runs",
        hits=failed,
        cases="runs",
        criterion="not finite, or no better than the blind policy",
        sentence=f"{listed}. Evolution strategies use ranks of patches and of returns, so that an inaccurate estimate "
        "costs quality, and no gradient can overflow.",
    )


def _looks_at_gaps(seen: list[Frame]) -> Claim:
    """Compare how much of the gaps on the way and of everything else is kept."""
    shares = [pair for frame in seen if (pair := _kept_shares(frame)) is not None]
    more = [gaps > others for gaps, others in shares]
    means = [statistics.fmean(column) for column in zip(*shares, strict=True)] if shares else [0.0, 0.0]
    return Claim(
        claim="The policy learns to pay attention to the gaps (appendix).",
        paper="shown in frames",
        ours=f"{means[0]:.0%} of the pixels of gaps are kept, {means[1]:.0%} of the other pixels",
        hits=more or [False],
        cases="frames with a gap",
        criterion="a larger share of the pixels of gaps is kept than of the other pixels",
        sentence=f"In {sum(more)} of {len(shares)} frames of an episode with {HYBRID}, gaps on the way keep a larger "
        f"share of their pixels than the rest of the images; on average {means[0]:.0%} against {means[1]:.0%}.",
    )


def _kept_shares(frame: Frame) -> tuple[float, float] | None:
    """Return the shares of gaps and of the rest that are kept, ``None`` if there is no gap to be seen."""
    from hrf_paper.locomotion.replay import gap_pixels

    gap = gap_pixels(frame.depth)
    return (float(frame.kept[gap].mean()), float(frame.kept[~gap].mean())) if gap.any() else None


def _needs_sight(found: dict[str, Outcome]) -> Claim:
    listed = ", ".join(
        f"{name} {o.text} ({o.share} crossed)"
        for name, o in found.items()
        if name in ("exact", "uniform", "blind")
    )
    best = max(found, key=lambda name: found[name].mean if found[name].values else -math.inf)
    return Claim(
        claim="Does the task need sight, and does it need attention?",
        paper="not asked",
        ours=f"blind {found['blind'].text}, best {best} {found[best].text}",
        sentence=f"Returns on unseen fields: {listed}. A policy that reads all patches has no attention at all.",
    )


def _cheapest(found: dict[str, Outcome]) -> Claim:
    """Order the methods that rank patches by FLOPs."""
    ranked = sorted((n for n in found if found[n].ranking_flops), key=lambda name: found[name].flops)
    listed = "; ".join(f"{n} {number(found[n].flops, grouped=True)}: {found[n].text}" for n in ranked)
    return Claim(
        claim="What does each method reach for its FLOPs, exact attention among them?",
        paper="not asked",
        ours=f"fewest FLOPs: {ranked[0]}",
        sentence=f"FLOPs per decision and return: {listed}. With 96 patches exact attention is cheap; features pay "
        "with more patches, since their cost grows linearly.",
    )


def _listed(found: Outcome) -> str:
    return ", ".join(f"{value:.2f}" for value in found.values)


# Training curves with bands, returns against FLOPs, and frames with what was masked out in red.

_COLOURS = {
    "exact": "#000000",
    _BASELINE: "#D55E00",
    _SMALL[0]: "#E69F00",
    HYBRID: "#009E73",
    _SMALL[1]: "#0072B2",
    "uniform": "#CC79A7",
    "blind": "#999999",
}
_CROWD = (HYBRID, *_SMALL)


def figure(settings: LocomotionSettings, results: Results) -> Figure:
    """Draw two panels, and the frames below them."""
    hybrid, baseline = (outcome(settings, results, name) for name in (HYBRID, _BASELINE))
    drawing = canvas(13.5, 8.4)
    headline(
        drawing,
        f"{HYBRID} returns {hybrid.mean:.2f} and {_BASELINE} {baseline.mean:.2f}, "
        f"for {baseline.flops / hybrid.flops:.1f} times the FLOPs",
        f"Laikago on stepping stones; runs per method: {settings.runs}; curves: unseen fields while training, bands "
        "from the worst run to the best;\nright: unseen fields of 4 m after training, one dot per run; below: front "
        f"and belly camera of {HYBRID}, masked patches in red",
    )
    seen = frames(results)
    grid = drawing.add_gridspec(2, 2 * len(seen), height_ratios=(3.2, 1))
    left = drawing.add_subplot(grid[0, : len(seen)])
    right = drawing.add_subplot(grid[0, len(seen) :])
    _draw_curves(left, settings, results)
    _draw_costs(right, settings, results)
    bare((left, right))
    for place, frame in enumerate(seen):
        _draw_frame(drawing.add_subplot(grid[1, 2 * place : 2 * place + 2]), frame)
    return drawing


def _draw_curves(axes: Axes, settings: LocomotionSettings, results: Results) -> None:
    for method in settings.methods:
        points = curves(settings, results, method)
        if not len(points):
            continue
        iterations, returns = points[0, :, 0], points[..., 1]
        colour = _COLOURS[method]
        axes.plot(iterations, returns.mean(0), color=colour, linewidth=2, label=method)
        axes.fill_between(iterations, returns.min(0), returns.max(0), color=colour, alpha=0.1, linewidth=0)
    axes.axvline(settings.training.rehearsals, color=GREY, linewidth=1, linestyle=":")
    axes.set_xlabel("iteration; walks in the simulation from the dotted line on")
    axes.set_ylabel("return")
    axes.legend(frameon=False, fontsize=9, ncols=2)


def _draw_costs(axes: Axes, settings: LocomotionSettings, results: Results) -> None:
    """Draw FLOPs on a logarithmic axis; the blind policy has none, and is a line."""
    axes.set_xscale("log")
    axes.set_xlabel("FLOPs per decision")
    axes.set_ylabel("return on unseen fields")
    found = {method: outcome(settings, results, method) for method in settings.methods}
    axes.axhline(found["blind"].mean, color=_COLOURS["blind"], linestyle=":")
    axes.text(
        0.01, found["blind"].mean, "blind", transform=axes.get_yaxis_transform(), color=GREY, va="bottom"
    )
    shown = [name for name in found if name != "blind" and found[name].values]
    # Methods of the hybrid's FLOPs stand above each other, and so do their labels.
    crowd = sorted((name for name in shown if name in _CROWD), key=lambda name: found[name].mean)
    for name in shown:
        o, colour = found[name], _COLOURS[name]
        axes.plot([o.flops] * len(o.values), o.values, "o", color=colour, alpha=0.6)
        axes.plot([o.flops], [o.mean], "_", color=colour, markersize=22, markeredgewidth=2.5)
        x, side = (16, "left") if name in crowd or name == "uniform" else (-16, "right")
        y = 13 * (crowd.index(name) - 1) if name in crowd else 12
        note(axes, name, (o.flops, o.mean), (x, y), colour, ha=side, va="center")


def _draw_frame(axes: Axes, frame: Frame) -> None:
    from hrf_paper.locomotion.replay import masked_images

    axes.imshow(masked_images(frame.depth, frame.kept), interpolation="nearest")
    axes.set_title(f"at {frame.x:.1f} m", size=9, color=GREY)
    axes.set_axis_off()


EXPERIMENT = Experiment(
    name="locomotion",
    title="Implicit attention of a quadruped on stepping stones",
    source="Section on robotics, figure on the left, and its appendix",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("gymnasium", "numba", "pybullet"),
)
