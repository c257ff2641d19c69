"""Language models trained on drawn words: uniform draws, the softmax itself, or random features (paper, Appendix)."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor
from torch.nn import functional as F

from hrf.report import number
from hrf_paper import datasets
from hrf_paper.datasets import Corpus, batches
from hrf_paper.experiments.experiment import Claim, Experiment, Part, Results, Table
from hrf_paper.experiments.language_model import Draws, Trainer, Training
from hrf_paper.experiments.plotting import COLOURS, bare, canvas, headline, log_axis

# Train language models with drawn words: validation perplexity by epoch, sampler and seed.
#
# Samplers of random features draw with queries and embeddings of one length r: the paper's 1, and 2. The distances of
# such draws from uniform draws and from the softmax are known without any features: q ∝ exp(r² cos θ).

RADIUS, WIDE = 1.0, 2.0
MAPS = ("trigonometric", "FAVOR+", "angular hybrid", "Gaussian hybrid")
LONGER = f"FAVOR+, r = {WIDE:g}"
SAMPLERS: dict[str, tuple[str, float]] = {
    "uniform": ("uniform", RADIUS),
    "exact": ("exact", RADIUS),
    **{name: (name, RADIUS) for name in MAPS},
    LONGER: ("FAVOR+", WIDE),
}
DISTANCES = "draws"  # the part with distances of proposals
_QUERIES = 256


@dataclass(frozen=True)
class SampledSoftmaxSettings:
    """``training`` is common to all runs; its draws and seed are replaced by the fields below.

    Attributes:
        training: the models and their training.
        seeds: runs per sampler.
        k: words drawn per target.
        features: D of bases; hybrids get m·n = D.
        n_coefficient_projections: n of hybrids.
        rebuild_every: steps after which a sampler is rebuilt from the current embeddings.
        seed: the seed of the first run; the other runs follow.
    """

    training: Training
    seeds: int
    k: int = 40
    features: int = 1024
    n_coefficient_projections: int = 8
    rebuild_every: int = 20
    seed: int = 0


# The paper's figure was drawn with these settings.
FULL = SampledSoftmaxSettings(Training("penn_treebank", width=200, epochs=80), seeds=25, rebuild_every=1)


def key(sampler: str, run: int, epoch: int) -> str:
    """Return the name of an epoch's part."""
    return f"{sampler}, run {run}, epoch {epoch}"


def parts(settings: SampledSoftmaxSettings) -> dict[str, Part]:
    """Return one part per sampler, run and epoch, and at last the distances of proposals."""
    runs = _SampledSoftmaxRuns(settings, getattr(datasets, settings.training.text)())
    work: dict[str, Part] = {
        key(sampler, run, epoch): partial(runs.epoch, sampler, run, epoch)
        for sampler in SAMPLERS
        for run in range(settings.seeds)
        for epoch in range(1, settings.training.epochs + 1)
    }
    return work | {DISTANCES: runs.distances}


class _SampledSoftmaxRuns:
    """All trainings, one of them in memory at a time."""

    def __init__(self, settings: SampledSoftmaxSettings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self._held: Trainer | None = None

    def _trainer(self, sampler: str, run: int) -> Trainer:
        name, radius = SAMPLERS[sampler]
        s = self.settings
        draws = Draws(name, s.k, s.features, s.n_coefficient_projections, radius, s.rebuild_every)
        training = replace(s.training, draws=draws, seed=s.seed + run)
        if self._held is None or self._held.training != training:
            self._held = Trainer(training, self.corpus)
        return self._held

    def epoch(self, sampler: str, run: int, epoch: int) -> dict[str, Any]:
        """Train to the end of an epoch."""
        return {"perplexity": self._trainer(sampler, run).trained(epoch)}

    @torch.no_grad()
    def distances(self) -> dict[str, Any]:
        """Measure the total variation from exp(r² cos θ) to the uniform distribution and to the softmax."""
        trainer = self._trainer("exact", 0)
        trainer.trained(self.settings.training.epochs)
        model, training = trainer.model.eval(), self.settings.training
        first = batches(self.corpus.valid[: training.judged_words], training.batch_size, training.length)[0]
        queries = model(first.inputs)[0].flatten(0, 1)[:_QUERIES]
        keys = model.words.weight
        softmax = (queries @ keys.mT).softmax(-1)
        cosines = F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).mT
        uniform = torch.full_like(softmax, 1 / len(keys))
        found = {"uniform": {"softmax": _variation(uniform, softmax)}}
        for radius in (RADIUS, WIDE):
            proposal = (radius**2 * cosines).softmax(-1)
            found[f"r = {radius:g}"] = {
                "uniform": _variation(proposal, uniform),
                "softmax": _variation(proposal, softmax),
            }
        return found


def _variation(p: Tensor, q: Tensor) -> float:
    """Return ½ Σ |p − q|, the mean over rows."""
    return float((p - q).abs().sum(-1).mean() / 2)


def perplexities(settings: SampledSoftmaxSettings, results: Results, sampler: str, epoch: int) -> list[float]:
    """Return the perplexities after an epoch, one per run."""
    return [results[key(sampler, run, epoch)]["perplexity"] for run in range(settings.seeds)]


def last_perplexities(settings: SampledSoftmaxSettings, results: Results, sampler: str) -> list[float]:
    """Return the perplexities after the last epoch, one per run."""
    return perplexities(settings, results, sampler, settings.training.epochs)


def mean_perplexity(settings: SampledSoftmaxSettings, results: Results, sampler: str) -> float:
    """Return the mean perplexity after the last epoch."""
    return statistics.fmean(last_perplexities(settings, results, sampler))


# Perplexities by epoch, and distances of proposals.


def tables(settings: SampledSoftmaxSettings, results: Results) -> list[Table]:
    """Show perplexities by epoch, distances of proposals, and the settings that are scaled down."""
    epochs = range(1, settings.training.epochs + 1)
    rows = [
        (name, *(_with_spread(perplexities(settings, results, name, epoch)) for epoch in epochs))
        for name in SAMPLERS
    ]
    near = [
        (name, *(_text(found[side]) if side in found else "" for side in ("uniform", "softmax")))
        for name, found in results[DISTANCES].items()
        if name != "timings"
    ]
    return [
        Table(
            "Validation perplexity by epoch, e to the cross-entropy (the paper's is 2 to it)",
            ("drawn by", *(f"epoch {e}" for e in epochs)),
            rows,
            long=len(epochs) > 8,
        ),
        Table(
            "Total variation between proposals and two distributions",
            ("proposal", "uniform", "softmax"),
            near,
        ),
    ]


def _with_spread(values: list[float]) -> str:
    return f"{_text(statistics.fmean(values))} ± {_text(statistics.stdev(values))}"


def _text(value: float) -> str:
    return number(value, grouped=True)


# Statements of the appendix on language modelling with hybrids, and what better draws can gain.

_CLEAR = 3.0  # standard errors: smaller differences do not count
_ALIKE = 0.02  # relative difference up to which perplexities are alike, however clear it is


def claims(settings: SampledSoftmaxSettings, results: Results) -> list[Claim]:
    """Judge the appendix on language modelling with hybrids."""
    rivals = [name for name in MAPS if name != "trigonometric"]
    words = "FAVOR+ and hybrids are better than trigonometric features."
    over_uniform = "All random features are better than uniform draws."
    return [
        _alike(settings, results),
        _better(settings, results, rivals, "trigonometric", claim=words, than="trigonometric features"),
        _better(settings, results, list(MAPS), "uniform", claim=over_uniform, than="uniform draws"),
        *(claim(settings, results) for claim in (_exact, _maps, _radius)),
    ]


def _gap(settings: SampledSoftmaxSettings, results: Results, first: str, second: str) -> tuple[float, float]:
    """Return how much larger the first sampler's perplexity is, and the standard error; runs share seeds."""
    sides = (last_perplexities(settings, results, name) for name in (first, second))
    gaps = [a - b for a, b in zip(*sides, strict=True)]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))


def _alike(settings: SampledSoftmaxSettings, results: Results) -> Claim:
    means = {name: mean_perplexity(settings, results, name) for name in MAPS}
    pairs = list(combinations(MAPS, 2))
    gaps = {pair: _gap(settings, results, *pair) for pair in pairs}
    clear = [pair for pair, (gap, error) in gaps.items() if abs(gap) > _CLEAR * error]
    apart = [(a, b) for a, b in clear if abs(means[a] - means[b]) > _ALIKE * min(means[a], means[b])]
    spread = max(means.values()) / min(means.values()) - 1
    listed = ", ".join(f"{_text(value)} ({name})" for name, value in means.items())
    named = "; ".join(f"{a} and {b}" for a, b in clear) or "no two of them"
    return Claim(
        claim="The difference between hybrids and other random features in this task is not very significant.",
        paper="not very significant",
        ours=f"{spread:.1%} between the best and the worst map",
        hits=[pair not in apart for pair in pairs],
        cases="pairs of maps",
        criterion=f"within {_ALIKE:.0%} or {_CLEAR:g} standard errors",
        matching="m·n = D",
        sentence=f"After {settings.training.epochs} epochs the mean perplexities of {settings.seeds} runs are {listed}"
        f": {spread:.1%} from the best to the worst. More than {_CLEAR:g} standard errors lie between {named}.",
    )


def _better(
    settings: SampledSoftmaxSettings, results: Results, names: list[str], rival: str, *, claim: str, than: str
) -> Claim:
    """Judge whether each of these samplers has a clearly lower perplexity than a rival."""
    gaps = {name: _gap(settings, results, name, rival) for name in names}
    better = [name for name, (gap, error) in gaps.items() if gap < -_CLEAR * error]
    return Claim(
        claim=claim,
        paper="so, over 25 runs of 80 epochs",
        ours=f"better: {_listed(better)}",
        hits=[name in better for name in names],
        cases="maps",
        criterion=f"by more than {_CLEAR:g} standard errors",
        matching="m·n = D",
        sentence=f"By more than {_CLEAR:g} standard errors of {settings.seeds} runs, the perplexity is lower than with "
        f"{than} for: {_listed(better)}.",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _compared(settings: SampledSoftmaxSettings, results: Results, first: str, second: str) -> str:
    gap, error = _gap(settings, results, first, second)
    means = [_text(mean_perplexity(settings, results, name)) for name in (first, second)]
    word = "lower" if gap < 0 else "higher"
    clear = "clearly" if abs(gap) > _CLEAR * error else "not clearly"
    return f"{means[0]} against {means[1]}, {_text(abs(gap))} ± {_text(error)} {word}, {clear} so"


def _exact(settings: SampledSoftmaxSettings, results: Results) -> Claim:
    text = _compared(settings, results, "exact", "uniform")
    return Claim(
        claim="How much can better draws gain? The softmax itself against uniform draws.",
        paper="drawn in a figure",
        ours=text,
        sentence=f"Words drawn from the softmax give a perplexity of {text}: as much as better draws can gain here, "
        f"with {settings.k} words per target. A perplexity above 10,000, the number of words, is worse than that of a "
        "uniform guess.",
    )


def _maps(settings: SampledSoftmaxSettings, results: Results) -> Claim:
    best = min(MAPS, key=lambda name: mean_perplexity(settings, results, name))
    text = _compared(settings, results, best, "uniform")
    near = results[DISTANCES][f"r = {RADIUS:g}"]["uniform"]
    return Claim(
        claim="Random features at the paper's length 1 against uniform draws.",
        paper="drawn in a figure",
        ours=f"{best}: {text}",
        matching="m·n = D",
        sentence=f"The best map, {best}, has a perplexity of {text}. Vectors of length 1 make the proposal exp(cos θ), "
        f"which is within {near:.1%} of uniform draws in total variation, whatever estimates it.",
    )


def _radius(settings: SampledSoftmaxSettings, results: Results) -> Claim:
    text = _compared(settings, results, LONGER, "FAVOR+")
    found = results[DISTANCES]
    near = [found[f"r = {radius:g}"]["softmax"] for radius in (RADIUS, WIDE)]
    return Claim(
        claim=f"Longer vectors, r = {WIDE:g}, for draws nearer to the softmax.",
        paper="r = 1 only",
        ours=text,
        sentence=f"With r = {WIDE:g} instead of r = {RADIUS:g} FAVOR+ has a perplexity of {text}. The total "
        f"variation between proposal and softmax goes from {near[0]:.3f} to {near[1]:.3f}; uniform draws have "
        f"{found['uniform']['softmax']:.3f}.",
    )


# Perplexity over epochs, and all runs after the last epoch.

_COLOURS = COLOURS | {"uniform": "#7F7F7F", "exact": "#000000", LONGER: "#E69F00"}


def figure(settings: SampledSoftmaxSettings, results: Results) -> Figure:
    """Draw perplexity over epochs, and the runs after the last epoch."""
    drawing = canvas(13, 6.4)
    ranked = sorted(SAMPLERS, key=lambda name: mean_perplexity(settings, results, name))
    means = [mean_perplexity(settings, results, name) for name in MAPS]
    headline(
        drawing,
        f"{max(means) / min(means) - 1:.1%} between the paper's four maps; lowest perplexity: {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.title}, {settings.k} words "
        f"drawn per target, {settings.seeds} runs per sampler; validation perplexity of the full softmax\n"
        f"Bands and bars: one deviation over runs. Maps with D = {settings.features} at vectors of length "
        f"{RADIUS:g}, except where r is given",
    )
    over, after = drawing.subplots(1, 2, width_ratios=[1.4, 1])
    _draw_epochs(over, settings, results)
    _draw_runs(after, settings, results, ranked)
    bare([over, after])
    for label in after.get_yticklabels():
        label.set_color(_COLOURS[label.get_text()])
    return drawing


def _draw_epochs(axes: Axes, settings: SampledSoftmaxSettings, results: Results) -> None:
    epochs = range(1, settings.training.epochs + 1)
    for name in SAMPLERS:
        values = [perplexities(settings, results, name, epoch) for epoch in epochs]
        middle, spread = [statistics.fmean(v) for v in values], [statistics.stdev(v) for v in values]
        low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(epochs, low, high, color=_COLOURS[name], alpha=0.15, linewidth=0)
        axes.plot(epochs, middle, color=_COLOURS[name], linewidth=1.8, label=name)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("validation perplexity", size=11)
    log_axis(axes)


def _draw_runs(axes: Axes, settings: SampledSoftmaxSettings, results: Results, ranked: list[str]) -> None:
    for place, name in enumerate(reversed(ranked)):
        runs, colour = last_perplexities(settings, results, name), _COLOURS[name]
        mean, spread = statistics.fmean(runs), statistics.stdev(runs)
        axes.errorbar(mean, place, xerr=spread, fmt="o", color=colour, markersize=8)
        axes.plot(runs, [place] * len(runs), "|", color=colour, markersize=10)
    axes.set_yticks(range(len(ranked)), [*reversed(ranked)])
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_title(f"after epoch {settings.training.epochs}, from the lowest", size=11)


_SCALED = Training(
    "penn_treebank", width=200, epochs=5, learning_rate=2e-3, words=150_000, judged_words=20_000
)
_QUICK = Training(
    "penn_treebank",
    width=32,
    epochs=2,
    learning_rate=1e-2,
    dropout=0.2,
    words=5_000,
    judged_words=2_000,
)

EXPERIMENT = Experiment(
    name="sampled-softmax",
    title="Language models trained with drawn words",
    source="Appendix on language modelling with hybrids",
    full=FULL,
    scaled=SampledSoftmaxSettings(_SCALED, seeds=3, features=256),
    quick=SampledSoftmaxSettings(_QUICK, seeds=2, features=64),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
