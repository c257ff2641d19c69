"""Which words to draw in training: uniformly, by the softmax itself, or by random features (paper, Appendix)."""

from __future__ import annotations

import math
import statistics
from itertools import combinations

from matplotlib.figure import Figure

from hrf_paper.experiments.experiment import Claim, Experiment, Results, Table
from hrf_paper.experiments.shared.language_model import Training
from hrf_paper.experiments.shared.plotting import COLOURS, bare, canvas, headline, log_axis
from hrf_paper.experiments.sampled_softmax.measure import (
    DISTANCES,
    MAPS,
    RADIUS,
    SAMPLERS,
    WIDE,
    Settings,
    key,
    parts,
)
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.shared.number_format import digits

__all__ = ["EXPERIMENT"]

_COLOURS = COLOURS | {"uniform": "#7F7F7F", "exact": "#000000", f"FAVOR+, r = {WIDE:g}": "#E69F00"}
# The paper's figure was drawn from these; a command without --full says what it has fewer of.
_FULL = Settings(Training("penn_treebank", width=200, epochs=80), seeds=25, rebuild_every=1)
_CLEAR = 3.0  # standard errors: what differs by less is called equal


def _values(settings: Settings, results: Results, sampler: str, epoch: int) -> list[float]:
    """Perplexities after an epoch, one a run."""
    return [results[key(sampler, run, epoch)]["perplexity"] for run in range(settings.seeds)]


def _last(settings: Settings, results: Results, sampler: str) -> list[float]:
    return _values(settings, results, sampler, settings.training.epochs)


def _mean(settings: Settings, results: Results, sampler: str) -> float:
    return statistics.fmean(_last(settings, results, sampler))


def _gap(settings: Settings, results: Results, first: str, second: str) -> tuple[float, float]:
    """How much larger the first sampler's perplexity is, and the standard error of that; runs share seeds."""
    pairs = zip(_last(settings, results, first), _last(settings, results, second), strict=True)
    gaps = [a - b for a, b in pairs]
    return statistics.fmean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))


def tables(settings: Settings, results: Results) -> list[Table]:
    """Perplexities by epoch; how near proposals are to uniform and to the softmax; what was scaled down."""
    epochs = range(1, settings.training.epochs + 1)
    rows = []
    for sampler in SAMPLERS:
        values = [_values(settings, results, sampler, epoch) for epoch in epochs]
        texts = (f"{digits(statistics.fmean(v))} ± {digits(statistics.stdev(v))}" for v in values)
        rows.append((sampler, *texts))
    near = [
        (name, *(digits(found[side]) if side in found else "" for side in ("uniform", "softmax")))
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
            "Total variation between what is drawn from and two distributions",
            ("drawn from", "uniform", "softmax"),
            near,
        ),
        *scaled_down(settings, _FULL),
    ]


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Of the appendix on language modelling with hybrids, and what the draws can gain at all."""
    return [
        _alike(settings, results),
        _order(settings, results),
        _exact(settings, results),
        _maps(settings, results),
        _radius(settings, results),
    ]


def _alike(settings: Settings, results: Results) -> Claim:
    means = {name: _mean(settings, results, name) for name in MAPS}
    pairs = [(*_gap(settings, results, a, b), a, b) for a, b in combinations(MAPS, 2)]
    clear = [f"{a} and {b}" for gap, error, a, b in pairs if abs(gap) > _CLEAR * error]
    spread = max(means.values()) / min(means.values()) - 1
    listed = ", ".join(f"{digits(value)} ({name})" for name, value in means.items())
    return Claim(
        claim="The difference between hybrids and other random features in this task is not very significant.",
        paper="not very significant",
        ours=f"{spread:.1%} between the best and the worst map",
        verdict="holds" if not clear or spread < 0.02 else "partly" if len(clear) < len(pairs) else "fails",
        matching="m·n = D",
        sentence=f"After {settings.training.epochs} epochs the mean perplexities of {settings.seeds} runs are {listed}"
        f": {spread:.1%} from the best to the worst. More than {_CLEAR:g} standard errors lie between "
        f"{'; '.join(clear) if clear else 'no two of them'}.",
    )


def _order(settings: Settings, results: Results) -> Claim:
    def clearly(first: str, second: str) -> bool:
        gap, error = _gap(settings, results, first, second)
        return gap < -_CLEAR * error

    others = [name for name in MAPS if name != "trigonometric"]
    better = [name for name in others if clearly(name, "trigonometric")]
    beaten = [name for name in MAPS if clearly(name, "uniform")]
    whole = len(better) == len(others) and len(beaten) == len(MAPS)
    return Claim(
        claim="FAVOR+ and hybrids are better than trigonometric features, and all are better than uniform draws.",
        paper="so, over 25 runs of 80 epochs",
        ours=f"better than trigonometric: {_listed(better)}; than uniform: {_listed(beaten)}",
        verdict="holds" if whole else "partly" if better else "fails",
        matching="m·n = D",
        sentence=f"By more than {_CLEAR:g} standard errors of {settings.seeds} runs, perplexities lower than those of "
        f"trigonometric features have: {_listed(better)}; lower than those of uniform draws: {_listed(beaten)}.",
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _compared(settings: Settings, results: Results, first: str, second: str) -> str:
    gap, error = _gap(settings, results, first, second)
    means = [_mean(settings, results, name) for name in (first, second)]
    word = "lower" if gap < 0 else "higher"
    clear = "clearly" if abs(gap) > _CLEAR * error else "not clearly"
    return (
        f"{digits(means[0])} against {digits(means[1])}, {digits(abs(gap))} ± {digits(error)} "
        f"{word}, {clear} so"
    )


def _exact(settings: Settings, results: Results) -> Claim:
    text = _compared(settings, results, "exact", "uniform")
    return Claim(
        claim="What draws can gain: the softmax itself against uniform ones.",
        paper="drawn in a figure",
        ours=text,
        verdict="beyond",
        sentence=f"Words drawn from the softmax give a perplexity of {text}: as much as better draws can gain here, "
        f"with {settings.k} words a target. Above 10,000, the number of words, a perplexity is worse than that of a "
        "uniform guess.",
    )


def _maps(settings: Settings, results: Results) -> Claim:
    best = min(MAPS, key=lambda name: _mean(settings, results, name))
    text = _compared(settings, results, best, "uniform")
    near = results[DISTANCES][f"r = {RADIUS:g}"]["uniform"]
    return Claim(
        claim="Random features at the paper's length 1 against uniform draws.",
        paper="drawn in a figure",
        ours=f"{best}: {text}",
        verdict="beyond",
        matching="m·n = D",
        sentence=f"The best map, {best}, has a perplexity of {text}. Vectors of length 1 make the proposal exp(cos θ), "
        f"which is within {near:.1%} of uniform draws in total variation, whatever estimates it.",
    )


def _radius(settings: Settings, results: Results) -> Claim:
    longer = f"FAVOR+, r = {WIDE:g}"
    text = _compared(settings, results, longer, "FAVOR+")
    found = results[DISTANCES]
    near = [found[f"r = {radius:g}"]["softmax"] for radius in (RADIUS, WIDE)]
    return Claim(
        claim=f"Longer vectors, r = {WIDE:g}, for draws nearer to the softmax.",
        paper="r = 1 only",
        ours=text,
        verdict="beyond",
        sentence=f"With r = {WIDE:g} FAVOR+ has a perplexity of {text}, by the side of r = {RADIUS:g}. The total "
        f"variation between proposal and softmax goes from {near[0]:.3f} to {near[1]:.3f}; uniform draws have "
        f"{found['uniform']['softmax']:.3f}.",
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Perplexity over epochs, and the runs after the last one."""
    drawing = canvas(13, 6.4)
    ranked = sorted(SAMPLERS, key=lambda name: _mean(settings, results, name))
    means = [_mean(settings, results, name) for name in MAPS]
    headline(
        drawing,
        f"{max(means) / min(means) - 1:.1%} between the paper's four maps; lowest perplexity: {ranked[0]}",
        f"LSTM with {settings.training.width} units on {settings.training.text.replace('_', ' ')}, {settings.k} words "
        f"drawn for a target, {settings.seeds} runs a sampler; validation perplexity of the full softmax\n"
        f"Bands and bars: one deviation over runs. Maps with D = {settings.features} at vectors of length "
        f"{RADIUS:g}, but where r is given",
    )
    over, after = drawing.subplots(1, 2, width_ratios=[1.4, 1])
    epochs = range(1, settings.training.epochs + 1)
    for name in SAMPLERS:
        values = [_values(settings, results, name, epoch) for epoch in epochs]
        middle, spread = [statistics.fmean(v) for v in values], [statistics.stdev(v) for v in values]
        low, high = ([m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1))
        over.fill_between(epochs, low, high, color=_COLOURS[name], alpha=0.15, linewidth=0)
        over.plot(epochs, middle, color=_COLOURS[name], linewidth=1.8, label=name)
    over.set_xlabel("epoch")
    over.xaxis.get_major_locator().set_params(integer=True)
    over.set_title("validation perplexity", size=11)
    log_axis(over)
    for place, name in enumerate(reversed(ranked)):
        runs = _last(settings, results, name)
        after.errorbar(
            statistics.fmean(runs),
            place,
            xerr=statistics.stdev(runs),
            fmt="o",
            color=_COLOURS[name],
            markersize=8,
        )
        after.plot(runs, [place] * len(runs), "|", color=_COLOURS[name], markersize=10)
    after.set_yticks(range(len(ranked)), [*reversed(ranked)])
    after.set_title(f"after epoch {settings.training.epochs}, from the lowest", size=11)
    bare([over, after])
    for label in after.get_yticklabels():
        label.set_color(_COLOURS[label.get_text()])
    return drawing


EXPERIMENT = Experiment(
    name="sampled-softmax",
    title="Language models trained with drawn words",
    source="Appendix on language modelling with hybrids",
    full=_FULL,
    scaled=Settings(
        Training(
            "penn_treebank", width=200, epochs=5, learning_rate=2e-3, words=150_000, judged_words=20_000
        ),
        seeds=3,
        features=256,
    ),
    quick=Settings(
        Training(
            "penn_treebank",
            width=32,
            epochs=2,
            learning_rate=1e-2,
            dropout=0.2,
            words=5_000,
            judged_words=2_000,
        ),
        seeds=2,
        features=64,
    ),
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
)
