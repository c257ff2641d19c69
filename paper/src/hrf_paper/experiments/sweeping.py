"""Policies that sweep balls into bowls, with the paper's attention (paper, section on robotics and its appendix)."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator

from hrf.report import number
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Runs, Table
from hrf_paper.experiments.plotting import GREY, bare, canvas, headline, note
from hrf_paper.manipulation import NEEDS
from hrf_paper.manipulation.cloning import Search, play
from hrf_paper.manipulation.demonstrations import Demonstrations, DemonstrationSettings
from hrf_paper.manipulation.performer import (
    DIVIDED,
    HYBRID,
    METHODS,
    REGULAR,
    PerformerConfig,
    VisionPerformer,
)
from hrf_paper.manipulation.training import CloneTrainer, CloneTraining, Diverged, corrected_demonstrations

# What the paper says about its sweeping robot.

FEWER_FLOPS = (
    3.0  # of the hybrid with m = n = 8 against FAVOR+ 256, at the same quality; we read 256 features
)
DIVERGED = 5  # other settings of regular features, all of which gave NaN
LEARNING_RATES = (1e-3, 1e-4, 1e-5)  # curves are means over them
IMAGE_SIZE = 500


# Policies with any attention, cloned from the same demonstrations: what they deliver, and what a decision costs.

SCRATCH = ("exact", "blind")  # methods that are always trained from scratch
_FIRST_SEED = 1_000  # of the episodes that judge a policy: neither demonstrations nor curves have them
# The paper's image with patches of about the same share of the scene's detail.
_PAPER_IMAGE = {"image_size": IMAGE_SIZE, "patch": 20}


@dataclass(frozen=True)
class SweepingSettings:
    """Trainings, and how policies are judged.

    Attributes:
        training: of every policy; methods, learning rates and seeds take turns.
        tuned_steps: if positive, only exact attention and the blind policy are trained from scratch, and the other
            methods take the place of exact attention in its trained policy and are trained so many steps more.
        tuned_learning_rate: of these steps.
        methods: attention methods, keys of `METHODS`.
        learning_rates: one training per learning rate and run.
        runs: trainings per method and learning rate, each with its own seed.
        episodes: unseen episodes per policy.
        divided: settings of regular features without a rule for denominators, keys of `DIVIDED`.
        divided_steps: steps of their trainings, one each.
        seed: of the first run; the other runs follow.
    """

    training: CloneTraining = field(default_factory=CloneTraining)
    tuned_steps: int = 0
    tuned_learning_rate: float = 1e-3
    methods: tuple[str, ...] = tuple(METHODS)
    learning_rates: tuple[float, ...] = (1e-3,)
    runs: int = 3
    episodes: int = 24
    divided: tuple[str, ...] = tuple(DIVIDED)
    divided_steps: int = 100
    seed: int = 0


def key(method: str, run: int, learning_rate: float) -> str:
    """Return the name of a part."""
    return f"{method}, run {run}, learning rate {learning_rate:g}"


def parts(settings: SweepingSettings) -> dict[str, Part]:
    """Return one part per policy, and one per setting of regular features that is divided as is."""
    work = _Work(settings)
    found: dict[str, Part] = {}
    for run in range(settings.runs):
        for rate in settings.learning_rates:
            for method in settings.methods:
                found[key(method, run, rate)] = partial(work.trained, work.training(method, run, rate))
    for method in settings.divided:
        training = replace(
            work.training(method, 0, settings.learning_rates[0]),
            steps=settings.divided_steps,
            judge_every=settings.divided_steps,
            judged_episodes=1,
        )
        found[method] = partial(work.divided, training)
    return found


class _Work:
    """All trainings of a run; demonstrations are made once."""

    def __init__(self, settings: SweepingSettings) -> None:
        self.settings = settings
        self._examples: Demonstrations | None = None

    def training(self, method: str, run: int, learning_rate: float) -> CloneTraining:
        """Return the training of a part, from scratch or after a swap."""
        settings = self.settings
        seed = settings.seed + run
        scratch = replace(settings.training, method=method, learning_rate=learning_rate, seed=seed)
        if not settings.tuned_steps or method in (*SCRATCH, *DIVIDED):
            return scratch
        return replace(
            scratch,
            steps=settings.tuned_steps,
            judge_every=settings.tuned_steps,
            learning_rate=settings.tuned_learning_rate,
            after=replace(scratch, method="exact"),
        )

    def trained(self, training: CloneTraining) -> dict[str, Any]:
        """Train a policy and judge it on unseen episodes."""
        trainer = CloneTrainer(training, self._demonstrations(), _say)
        diverged = _run(trainer)
        tried = training.search.samples * training.search.rounds
        flops = {"ours": trainer.policy.flops(tried)} | {"paper's image": _large(training).flops(tried)}
        found = {
            "curve": [{name: e[name] for name in ("step", "loss", "delivered")} for e in trainer.history],
            "diverged": diverged,
            "flops": {name: asdict(count) for name, count in flops.items()},
            "timings": {"training CPU seconds": trainer.history[-1]["seconds"] if trainer.history else 0.0},
        }
        if diverged is not None:
            return found | {"delivered": [0.0], "lost": [0.0], "rewards": [0.0]}
        seeds = range(_FIRST_SEED, _FIRST_SEED + self.settings.episodes)
        judged = play(trainer.policy, seeds, training.search)
        return found | {"delivered": judged.delivered, "lost": judged.lost, "rewards": judged.rewards}

    def divided(self, training: CloneTraining) -> dict[str, Any]:
        """Train a while with sums that are divided as they are, and say whether the loss stays a number."""
        trainer = CloneTrainer(training, self._demonstrations(), _say)
        diverged = _run(trainer)
        loss = trainer.history[-1]["loss"] if trainer.history else None
        return {"diverged": diverged, "loss": loss}

    def _demonstrations(self) -> Demonstrations:
        if self._examples is None:
            self._examples = corrected_demonstrations(self.settings.training, _say)
        return self._examples


def _run(trainer: CloneTrainer) -> int | None:
    """Train to the end; return the step in which the loss was no number, ``None`` if it always was."""
    try:
        trainer.trained()
    except Diverged as stop:
        return stop.step
    return None


def _large(training: CloneTraining) -> VisionPerformer:
    """Return an untrained policy for the paper's image, to count FLOPs."""
    return VisionPerformer(
        replace(training.model, **_PAPER_IMAGE), training.method, Generator().manual_seed(0)
    )


def _say(line: str) -> None:
    print(line, flush=True)


_SMALL = PerformerConfig(width=64, heads=2, layers=2, hidden=128)
# The paper's learning rates, five runs, and a deeper policy: about a day on a core.
FULL = SweepingSettings(
    CloneTraining(
        model=PerformerConfig(),
        data=DemonstrationSettings(
            episodes=500, glimpses=100_000, rounds=3, pupil_steps=2_000, pupil_episodes=500
        ),
        steps=10_000,
        batch=64,
        judge_every=1_000,
    ),
    learning_rates=LEARNING_RATES,
    runs=5,
    episodes=100,
    divided_steps=1_000,
)
# Three runs at one learning rate, larger than the paper's since steps are few: half an hour on a core.
SCALED = SweepingSettings(
    CloneTraining(
        model=_SMALL,
        data=DemonstrationSettings(glimpses=48_000, rounds=2, pupil_steps=800, pupil_episodes=144),
        steps=4_000,
        judge_every=2_000,
        learning_rate=3e-3,
    ),
    tuned_steps=100,
    learning_rates=(3e-3,),
    episodes=24,
    divided_steps=20,
)
QUICK = SweepingSettings(
    CloneTraining(
        model=PerformerConfig(width=16, heads=1, layers=1, hidden=16, values=2, code=16),
        data=DemonstrationSettings(
            episodes=4, glimpses=50, steps=12, rounds=1, pupil_steps=2, pupil_episodes=2
        ),
        steps=4,
        batch=8,
        negatives=16,
        judge_every=2,
        judged_episodes=1,
        search=Search(16, 2),
    ),
    runs=1,
    episodes=2,
    divided=("Trig 4, divided as is",),
    divided_steps=2,
)


# Delivered shares out of the parts: means and intervals of a method over its trainings.


def method_parts(settings: SweepingSettings, results: Results, method: str) -> list[dict[str, Any]]:
    """Return the parts of a method, one per run and learning rate."""
    return [
        results[key(method, run, rate)] for run in range(settings.runs) for rate in settings.learning_rates
    ]


def share(settings: SweepingSettings, results: Results, method: str, quantity: str = "delivered") -> Runs:
    """Return ``delivered``, ``lost`` or ``rewards`` of a method, in percent."""
    values = [100 * statistics.fmean(part[quantity]) for part in method_parts(settings, results, method)]
    return Runs(values, 0)


def curves(
    settings: SweepingSettings, results: Results, method: str
) -> tuple[list[float], list[list[float]]]:
    """Return the steps of the judgements and, per training, the delivered shares in percent, 0 after a divergence.

    The curve of a method that took the place of exact attention begins where that of exact attention ends.
    """
    training = settings.training
    tuned = bool(settings.tuned_steps) and method not in SCRATCH
    first, last, every = 0, training.steps, training.judge_every
    if tuned:
        first, last, every = training.steps, training.steps + settings.tuned_steps, settings.tuned_steps
    steps = [float(step) for step in range(first + every, last + 1, every)]
    found = [_delivered(part) for part in method_parts(settings, results, method)]
    found = [curve + [0.0] * (len(steps) - len(curve)) for curve in found]
    if tuned:
        ends = [_delivered(part)[-1:] for part in method_parts(settings, results, "exact")]
        return [float(first), *steps], [end + curve for end, curve in zip(ends, found, strict=True)]
    return steps, found


def _delivered(part: dict[str, Any]) -> list[float]:
    return [100 * point["delivered"] for point in part["curve"]]


# Delivered shares and FLOPs of all methods, and trainings without a rule for denominators.


def tables(settings: SweepingSettings, results: Results) -> list[Table]:
    """Show what policies deliver, what a decision costs, and which losses stay numbers."""
    return [
        _policies(settings, results),
        _costs(settings, results),
        *_divided(settings, results),
    ]


def _policies(settings: SweepingSettings, results: Results) -> Table:
    rows = []
    for name in settings.methods:
        found = [share(settings, results, name, quantity) for quantity in ("delivered", "lost", "rewards")]
        parts = method_parts(settings, results, name)
        seconds = [part["timings"]["training CPU seconds"] for part in parts]
        each = ", ".join(f"{value:.0f}" for value in found[0].values)
        rows.append(
            (name, found[0].text, each, *(f.text for f in found[1:]), f"{sum(seconds) / len(parts):.0f}")
        )
    return Table(
        "Policies on unseen starts: percent of the balls",
        ("attention", "delivered", "each training", "lost", "reward per step", "CPU seconds"),
        rows,
        caption=f"± is the 95 % interval of the mean over trainings; {settings.episodes} episodes each. A ball that "
        "falls beside the bowls is lost; CPU seconds are of one training with its judgements",
    )


def _costs(settings: SweepingSettings, results: Results) -> Table:
    rows = []
    for name in settings.methods:
        flops = results[key(name, 0, settings.learning_rates[0])]["flops"]
        counts = [
            flops[size][part] for size in ("ours", "paper's image") for part in ("attention", "encoder")
        ]
        rows.append((name, *(number(count, grouped=True) for count in (*counts, flops["ours"]["search"]))))
    return Table(
        "FLOPs per decision",
        ("attention", "attention", "encoder", "attention, 500²", "encoder, 500²", "search"),
        rows,
        caption=f"An image of {settings.training.model.image_size}² pixels as trained, and the paper's of 500² in "
        "patches of 20². The encoder contains attention; the search tries the energies of actions",
    )


def _divided(settings: SweepingSettings, results: Results) -> list[Table]:
    rows = []
    for name in settings.divided:
        step, loss = results[name]["diverged"], results[name]["loss"]
        rows.append((name, "none" if step is None else f"{step}", "" if loss is None else f"{loss:.2f}"))
    caption = f"{settings.divided_steps} steps each"
    title = "Regular features without a rule for denominators"
    return [Table(title, ("attention", "first NaN step", "mean loss"), rows, caption=caption)] if rows else []


# The paper's two statements on sweeping, and what the task itself can tell.

_ENOUGH, _BLIND_MOST = 85.0, 40.0  # percent of the balls: a policy that works, and one that cannot see
_MARGIN = 5.0  # points that count as the same quality


def claims(settings: SweepingSettings, results: Results) -> list[Claim]:
    """Judge quality and FLOPs of the hybrid, and NaN losses of regular features; say what sight is worth."""
    shares = {name: share(settings, results, name) for name in settings.methods}
    found = []
    if HYBRID in shares and REGULAR in shares:
        found += [_quality(shares), _flops(settings, results)]
    found.append(_diverged(settings, results))
    if {"exact", "blind"} <= shares.keys():
        found.append(_sight(shares))
    if {"exact", "uniform"} <= shares.keys():
        found.append(_attention(shares))
    return found


def _quality(shares: dict[str, Runs]) -> Claim:
    hybrid, regular = shares[HYBRID], shares[REGULAR]
    pairs = list(zip(hybrid.values, regular.values, strict=True))
    good = [a >= b - _MARGIN for a, b in pairs]
    listed = "; ".join(f"{a:.0f} against {b:.0f} %" for a, b in pairs)
    return Claim(
        claim=f"{HYBRID} gives policies of the same quality as {REGULAR}.",
        paper="similar curves",
        ours=f"{hybrid.text} % against {regular.text} % of the balls",
        hits=good,
        cases="trainings",
        criterion=f"delivers at most {_MARGIN:.0f} points less, seed by seed",
        sentence=f"Delivered on unseen starts, training by training: {listed}.",
    )


def _flops(settings: SweepingSettings, results: Results) -> Claim:
    """Compare FLOPs of attention, of the encoder and of the whole decision, at both sizes of the image."""
    counts: dict[str, Any] = {
        name: results[key(name, 0, settings.learning_rates[0])]["flops"] for name in (HYBRID, REGULAR)
    }
    ratios: dict[str, float] = {}
    for size in ("ours", "paper's image"):
        hybrid, regular = (counts[name][size] for name in (HYBRID, REGULAR))
        ratios |= {
            f"attention, {size}": regular["attention"] / hybrid["attention"],
            f"encoder, {size}": regular["encoder"] / hybrid["encoder"],
        }
    listed = ", ".join(f"{name} {ratio:.2f}×" for name, ratio in ratios.items())
    return Claim(
        claim=f"{HYBRID} needs 3 times fewer FLOPs than {REGULAR}.",
        paper="3 times fewer, against FAVOR+ 256",
        ours=f"{max(ratios.values()):.2f} times fewer at most",
        hits=[ratio >= FEWER_FLOPS for ratio in ratios.values()],
        cases="ratios",
        criterion="at least 3",
        sentence=f"FLOPs of {REGULAR} over those of {HYBRID}: {listed}. The search costs the same in both. "
        f"The paper's 256 is read as a number of features, which are 128 projections.",
    )


def _diverged(settings: SweepingSettings, results: Results) -> Claim:
    """Count trainings with regular features whose loss was not a number."""
    tried: dict[str, int | None] = {name: results[name]["diverged"] for name in settings.divided}
    for name in settings.methods:
        if name.startswith(("FAVOR+", "Trig")):
            for i, part in enumerate(method_parts(settings, results, name)):
                tried[f"{name}, training {i}"] = part["diverged"]
    broken = {name: step for name, step in tried.items() if step is not None}
    listed = "; ".join(f"{name}: step {step}" for name, step in broken.items()) or "none"
    return Claim(
        claim="Other settings of regular random features do not train: the loss is NaN.",
        paper=f"{DIVERGED} of {DIVERGED} settings",
        ours=f"{len(broken)} of {len(tried)} trainings",
        hits=[step is not None for step in tried.values()],
        cases="trainings",
        criterion="the loss is not a finite number at some step",
        sentence=f"Losses that were not a number, with the first such step: {listed}. The settings that are divided as "
        f"is were trained for {settings.divided_steps} steps, without the library's rule for small denominators.",
    )


def _sight(shares: dict[str, Runs]) -> Claim:
    exact, blind = shares["exact"], shares["blind"]
    met = "are" if exact.mean >= _ENOUGH and blind.mean < _BLIND_MOST else "are not both"
    return Claim(
        claim="Does the task need sight, and is it learned?",
        paper="not asked",
        ours=f"exact attention {exact.text} %, blind {blind.text} % of the balls",
        sentence=f"Of the balls on unseen starts, exact attention delivers {exact.mean:.1f} % and a policy without an "
        f"image {blind.mean:.1f} %; at least {_ENOUGH:.0f} % and below {_BLIND_MOST:.0f} % {met} reached.",
    )


def _attention(shares: dict[str, Runs]) -> Claim:
    exact, uniform = shares["exact"], shares["uniform"]
    listed = ", ".join(
        f"{name} {s.text} %" for name, s in sorted(shares.items(), key=lambda item: -item[1].mean)
    )
    return Claim(
        claim="Does the task need attention: how much do uniform weights lose?",
        paper="not asked",
        ours=f"uniform {uniform.mean - exact.mean:+.0f} points",
        sentence=f"Delivered shares, from the largest: {listed}. With queries and keys of length one, weights of exact "
        "attention differ by a factor of e² at most, so that they are never far from uniform.",
    )


# Delivered share over training with bands, and against the FLOPs of the encoder.

_COLOURS = {
    "exact": "#000000",
    REGULAR: "#D55E00",
    HYBRID: "#009E73",
    "Trig 128": "#0072B2",
    "uniform": "#CC79A7",
    "blind": "#888888",
}
_OTHER = "#E69F00"


def figure(settings: SweepingSettings, results: Results) -> Figure:
    """Draw curves on the left, and quality against cost on the right."""
    drawing = canvas(14.0, 6.2)
    shares = {name: share(settings, results, name) for name in settings.methods}
    finding = ", ".join(
        f"{name} {shares[name].mean:.0f} %" for name in ("exact", HYBRID, REGULAR) if name in shares
    )
    tuned = f", {settings.tuned_steps} more after maps took the place of exact attention"
    tuned = tuned if settings.tuned_steps else ""
    headline(
        drawing,
        f"Balls delivered on unseen starts: {finding}",
        f"two arms, 12 balls, {settings.training.steps:,} steps of implicit behaviour cloning{tuned}; "
        f"trainings per method: {settings.runs * len(settings.learning_rates)}\n"
        f"left: {settings.training.judged_episodes} episodes per point, band from the worst to the best training; "
        f"right: {settings.episodes} other episodes per training",
    )
    left, right = drawing.subplots(1, 2, sharey=True, width_ratios=(1.1, 1))
    _draw_curves(left, settings, results)
    _draw_costs(right, settings, results)
    left.set_ylabel("delivered, % of the balls")
    left.set_ylim(-2, 102)
    bare((left, right))
    return drawing


def _draw_curves(axes: Axes, settings: SweepingSettings, results: Results) -> None:
    for name in settings.methods:
        steps, found = curves(settings, results, name)
        values = np.array(found)
        colour = _COLOURS.get(name, _OTHER)
        axes.plot(steps, values.mean(0), color=colour, linewidth=2, label=name)
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.1, linewidth=0)
    axes.set_xlabel("steps of training")
    axes.legend(frameon=False, fontsize=9, loc="lower left", ncols=2)


def _draw_costs(axes: Axes, settings: SweepingSettings, results: Results) -> None:
    axes.set_xlabel("FLOPs of the encoder per decision, millions")
    for place, name in enumerate(name for name in settings.methods if name != "blind"):
        found = share(settings, results, name)
        flops = results[key(name, 0, settings.learning_rates[0])]["flops"]["ours"]["encoder"] / 1e6
        colour = _COLOURS.get(name, _OTHER)
        axes.plot([flops, flops], [min(found.values), max(found.values)], color=colour, linewidth=1.5)
        axes.plot([flops], [found.mean], "o", color=colour, markersize=8)
        height, rise, side = [(max(found.values), 5, "bottom"), (min(found.values), -5, "top")][place % 2]
        note(axes, name, (flops, height), (0, rise), colour, ha="center", va=side)
    if "blind" in settings.methods:
        blind = share(settings, results, "blind").mean
        axes.axhline(blind, color=GREY, linewidth=1, linestyle=":")
        axes.text(
            0.01, blind + 1, f"blind {blind:.0f} %", transform=axes.get_yaxis_transform(), color=GREY, size=9
        )
    axes.margins(x=0.2)


EXPERIMENT = Experiment(
    name="sweeping",
    title="Two arms that sweep balls into bowls, by vision",
    source="Section on robotics, its figure on the right, and its appendix",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=NEEDS,
)
