"""A Conformer-Transducer with the paper's attention: word error rates (paper, table of the section on speech)."""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from hrf.report import number
from hrf_paper.experiments.experiment import Claim, Experiment, Results, Runs, Table
from hrf_paper.experiments.plotting import GREY, bare, canvas, headline
from hrf_paper.experiments.speech_measure import (
    FULL,
    GROUPS,
    JOINED,
    LEVELS,
    ORDER,
    QUICK,
    SCALED,
    SINGLE,
    SINGLE_SET,
    STAGES,
    SpeechSettings,
    judged,
    key,
    methods_run,
    parts,
    printed_rate,
    printed_text,
    rate,
    set_names,
    turns_set,
)
from hrf_paper.speech.decoding import BEAM
from hrf_paper.speech.methods import METHODS

# Word error rates of all methods beside the paper's, at every stage.

_NOT_RUN = "not run"


def tables(settings: SpeechSettings, results: Results) -> list[Table]:
    """Show the models with exact attention, all methods at all stages, and each stage on all test utterances."""
    return [
        _trained(settings, results),
        _stages(settings, results),
        *(_sets(settings, results, stage) for stage in STAGES if methods_run(results, stage, METHODS)),
    ]


def _trained(settings: SpeechSettings, results: Results) -> Table:
    rows = []
    for run in range(settings.runs):
        for stage in (SINGLE, JOINED) if run < settings.swapped_runs else (SINGLE,):
            part = results[key(stage, "exact", run)]
            rates = [f"{part['draws'][0][tested]['wer']:.2f}" for tested in set_names(settings)]
            minutes = part["timings"]["training CPU seconds"] / 60
            searched = f"{part['searched']:.2f}" if "searched" in part else ""
            rows.append((f"run {run}", stage, searched, *rates, f"{minutes:.1f}"))
    return Table(
        "Exact attention: word error rate in percent",
        ("run", "model", f"{SINGLE_SET}, beam of {BEAM}", *set_names(settings), "CPU minutes"),
        rows,
        caption="Decoded greedily, but for the first number",
    )


def _stages(settings: SpeechSettings, results: Results) -> Table:
    columns = judged(settings)
    rows = [
        (name, printed_text(name), *(_cell(results, stage, name, tested) for stage, tested in columns))
        for name in METHODS
    ]
    return Table(
        "Word error rate in percent",
        ("attention", "paper", *(f"{stage} ({tested})" for stage, tested in columns)),
        rows,
        caption="± is the 95 % interval of the mean over runs and draws, if there are several; the paper's is one "
        "deviation over 10 runs on LibriSpeech, trained from scratch. Its FAVOR+ and Trig of sizes 432 and "
        "256 are read as numbers of features: 216 and 128 projections. Queries and keys have the length "
        f"{settings.key_length:g} in all trainings from scratch and in fine-tuning with complex HRF-C, HRF-A and Trig, "
        "and keep theirs elsewhere",
    )


def _sets(settings: SpeechSettings, results: Results, stage: str) -> Table:
    rows = []
    for name in methods_run(results, stage, METHODS):
        flops = number(results[key("swapped", name, 0)]["flops"], grouped=True)
        rows.append((name, flops, *(_cell(results, stage, name, tested) for tested in set_names(settings))))
    return Table(
        f"Word error rate in percent, {stage}, on all test utterances",
        ("attention", "FLOPs", *set_names(settings)),
        rows,
        caption=f"FLOPs of attention per frame and head at {settings.lengths[0]} frames",
    )


def _cell(results: Results, stage: str, method: str, tested: str) -> str:
    found = rate(results, stage, method, tested)
    return _NOT_RUN if found is None else found.text


# The order of the paper's table, judged at every stage that was run, and what the task itself can tell.

_ABOUT = {
    "swapped": "swapped into a model trained with exact attention, without training",
    "fine-tuned": "after fine-tuning with the map",
    "from scratch": "trained from scratch with the map",
}


def claims(settings: SpeechSettings, results: Results) -> list[Claim]:
    """Judge the order of the table's four kinds of maps, and say what the task tells apart."""
    found = []
    for (stage, tested), kinds in product(judged(settings), ORDER):
        pairs = list(product(*(methods_run(results, stage, GROUPS[kind]) for kind in kinds)))
        if pairs:
            found.append(_order(results, stage, tested, kinds, pairs))
    return [
        *found,
        _needs_attention(settings, results),
        _best(settings, results),
        _recognises(settings, results),
    ]


def _order(
    results: Results, stage: str, tested: str, kinds: tuple[str, str], pairs: list[tuple[str, ...]]
) -> Claim:
    """Judge whether one kind of map has lower error rates than another."""
    better, worse = kinds
    rates = {name: _rate(results, stage, name, tested) for pair in pairs for name in pair}
    won = [(a, b) for a, b in pairs if rates[a].mean < rates[b].mean]
    clear = [(a, b) for a, b in won if max(rates[a].values) < min(rates[b].values)]
    several = all(len(r.values) > 1 for r in rates.values())
    ranges = (
        f" In {len(clear)} of the {len(pairs)} pairs the ranges of runs and draws are apart."
        if several
        else ""
    )
    listed = "; ".join(f"{name} {r.text} %" for name, r in rates.items())
    printed = [_interval([f"{printed_rate(name)}" for name in GROUPS[kind]]) for kind in kinds]
    return Claim(
        claim=f"{better} has lower word error rates than {worse} ({_ABOUT[stage]}; {tested}).",
        paper=f"{printed[0]} % against {printed[1]} %",
        ours=f"{_range(rates, better)} % against {_range(rates, worse)} %",
        hits=[pair in won for pair in pairs],
        cases="pairs of rows",
        criterion="the mean is lower",
        sentence=f"Test utterances ({tested}): {listed}.{ranges}",
    )


def _recognises(settings: SpeechSettings, results: Results) -> Claim:
    found = _rate(results, SINGLE, "exact", SINGLE_SET)
    runs = [results[key(SINGLE, "exact", run)] for run in range(settings.runs)]
    minutes = ", ".join(f"{run['timings']['training CPU seconds'] / 60:.1f}" for run in runs)
    searched = ", ".join(f"{run['searched']:.2f}" for run in runs)
    listed = ", ".join(f"{value:.2f}" for value in found.values)
    return Claim(
        claim="How well does the model recognise single utterances with exact attention?",
        paper="not asked",
        ours=f"word error rate {statistics.fmean(run['searched'] for run in runs):.1f} %, greedily {found.mean:.1f} %",
        sentence=f"Word error rate on the test utterances, run by run: {searched} % with a beam of {BEAM}, {listed} % "
        f"decoded greedily, as in all other numbers; after {minutes} CPU minutes of training.",
        measured=True,
    )


def _needs_attention(settings: SpeechSettings, results: Results) -> Claim:
    """Say how much worse uniform and no attention are than exact attention."""
    gaps = {}
    for stage, tested in product(STAGES, set_names(settings)):
        if methods_run(results, stage, LEVELS) == [*LEVELS]:
            exact, *others = (_rate(results, stage, name, tested).mean for name in LEVELS)
            gaps[stage, tested] = (exact, *(other - exact for other in others))
    text = "; ".join(
        f"{stage}, {tested}: exact {exact:.1f} %, uniform {uniform:+.1f}, none {none:+.1f}"
        for (stage, tested), (exact, uniform, none) in gaps.items()
    )
    turns = turns_set(settings)
    _, uniform, none = gaps["swapped", turns]
    return Claim(
        claim="Does the task need attention: how much do uniform weights and none at all lose?",
        paper="not asked",
        ours=f"uniform {uniform:+.1f} and none {none:+.1f} points (swapped; {turns})",
        sentence=f"Word error rates of exact attention, and points by which uniform and none are worse: {text}.",
    )


def _best(settings: SpeechSettings, results: Results) -> Claim:
    """Name the maps that lose least to exact attention."""
    tested = turns_set(settings)
    rates = {name: _rate(results, "swapped", name, tested).mean for name in METHODS}
    maps = sorted((name for name in METHODS if name not in LEVELS), key=rates.__getitem__)
    listed = ", ".join(f"{name} {rates[name]:.1f} %" for name in maps)
    return Claim(
        claim="Which attention can take the place of exact attention without any training?",
        paper="not asked",
        ours=f"{maps[0]}: {rates[maps[0]]:.1f} % against {rates['exact']:.1f} % with exact attention",
        sentence=f"Test utterances ({tested}), from the lowest word error rate: {listed}; "
        f"exact {rates['exact']:.1f} %.",
    )


def _rate(results: Results, stage: str, method: str, tested: str) -> Runs:
    found = rate(results, stage, method, tested)
    assert found is not None, f"{method} was not run at the stage {stage}"
    return found


def _range(rates: dict[str, Runs], kind: str) -> str:
    return _interval([f"{mean:.1f}" for mean in sorted(rates[n].mean for n in GROUPS[kind] if n in rates)])


def _interval(ascending: list[str]) -> str:
    """Return the first and the last number, or one if they are alike."""
    low, high = ascending[0], ascending[-1]
    return low if low == high else f"{low} to {high}"


# Word error rate against the FLOPs of attention, stage by stage.

_COLOURS = {
    "HRF-C": "#009E73",
    "HRF-A": "#56B4E9",
    "FAVOR+": "#D55E00",
    "Trig": "#0072B2",
    "FAVOR++": "#E69F00",
    "FAVOR#": "#000000",
    "shifted": "#CC79A7",
    "separable": "#CC79A7",
    "summarised": "#AA3377",
}
_LINE = 0.04  # of the height of a panel, as far as labels of levels are apart at least
_SIZE = 8.5  # of labels, in points
_STEPS = 12  # of four points, as far as a label is moved up or down
_GAP = 7.0  # between a dot and its label, in points
_ASIDE = 1.03  # factor between the places of methods with the same FLOPs
_HALO = withStroke(linewidth=2.5, foreground="white")  # keeps lines out of labels
_TOP = 1.7  # rates above so many times that without attention are drawn at the top


def figure(settings: SpeechSettings, results: Results) -> Figure:
    """Draw one panel per stage that was run and set of test utterances that it is judged by."""
    drawn = [pair for pair in judged(settings) if methods_run(results, pair[0], METHODS)]
    tested = turns_set(settings)
    drawing = canvas(12.0, 1.6 + 4.6 * len(drawn))
    exact = _rate(results, "swapped", "exact", tested)
    maps = [name for name in METHODS if name not in LEVELS]
    best = min(maps, key=lambda name: _rate(results, "swapped", name, tested).mean)
    lowest = _rate(results, "swapped", best, tested).mean
    headline(
        drawing,
        f"Swapped in untrained, {best} has the lowest rate: {lowest:.1f} % WER, exact {exact.mean:.1f} %",
        f"AN4; test utterances, single or joined to about {settings.lengths[0]} frames, in turns of changing speakers; "
        f"runs: {settings.swapped_runs} swapped, {settings.tuned_runs} fine-tuned, {settings.scratch_runs} from "
        "scratch\n"
        "FLOPs of attention per frame and head, equal ones side by side; bars: smallest and largest of all runs and "
        "draws; rates beyond the top are drawn there",
    )
    top = _TOP * _rate(results, "swapped", "none", tested).mean
    panels = drawing.subplots(len(drawn), 1, squeeze=False, sharex=True)[:, 0]
    bare(panels)
    for panel, (stage, tested) in zip(panels, drawn, strict=True):
        dots = _draw(panel, results, stage, tested, top)
        panel.set_title(f"{stage} ({tested})", size=11)
        panel.set_ylabel("word error rate, %")
        panel.margins(x=0.12)
        drawing.draw_without_rendering()
        _label(panel, dots)
    panels[-1].set_xlabel("FLOPs")
    drawing.align_ylabels(panels)
    return drawing


class _Dot(NamedTuple):
    """A dot with its bar and its label; ``x`` are its FLOPs, moved aside where another dot has the same."""

    x: float
    low: float
    height: float
    high: float
    text: str
    colour: str


def _draw(axes: Axes, results: Results, stage: str, tested: str, top: float) -> list[_Dot]:
    """Draw all methods of a stage: means as dots, ranges of the values as lines."""
    axes.set_xscale("log")
    found = {name: r for name in METHODS if (r := rate(results, stage, name, tested)) is not None}
    levels = {name: found.pop(name).mean for name in LEVELS if name in found}
    for level in levels.values():
        axes.axhline(level, color=GREY, linewidth=1, linestyle=":")
    dots, seen = [], Counter[float]()
    for name, r in found.items():
        flops = results[key("swapped", name, 0)]["flops"]
        x = flops * _ASIDE ** seen[flops]
        seen[flops] += 1
        colour = _COLOURS[max((kind for kind in _COLOURS if name.startswith(kind)), key=len)]
        low, height, high = (min(top, value) for value in (min(r.values), r.mean, max(r.values)))
        axes.plot([x, x], [low, high], color=colour, linewidth=1.5)
        axes.plot([x], [height], "o", color=colour, markersize=7)
        text = name if r.mean <= top else f"{name}: {r.mean:.0f} %"
        dots.append(_Dot(x, low, height, high, text, colour))
    bottom, ceiling = axes.get_ylim()
    for name, height in _apart(levels, _LINE * (ceiling - bottom)).items():
        text = f"{name} {levels[name]:.1f}"
        place = axes.get_yaxis_transform()
        axes.text(1.01, height, text, transform=place, color=GREY, size=9, va="center")
    return dots


def _label(axes: Axes, dots: list[_Dot]) -> None:
    """Write each label beside its dot, at the nearest height where it covers no dot, no other label and no bar.

    Where there is no such height, it may cover bars.
    """
    point = axes.figure.dpi / 72
    lows, middles, highs = (
        axes.transData.transform([(dot.x, height) for dot, height in zip(dots, heights, strict=True)]) / point
        for heights in zip(*((dot.low, dot.height, dot.high) for dot in dots), strict=True)
    )
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in middles]
    bars = [
        Bbox.from_extents(x - 1, low, x + 1, high) for (x, low), (_, high) in zip(lows, highs, strict=True)
    ]
    for dot, (x, y) in sorted(zip(dots, middles, strict=True), key=lambda pair: -pair[1][1]):
        width = 0.68 * _SIZE * len(dot.text)
        sides = product(sorted(range(-_STEPS, _STEPS + 1), key=abs), (True, False))
        boxes = {
            (rise, right): Bbox.from_bounds(
                x + _GAP if right else x - _GAP - width, y + 4 * rise - _SIZE / 2, width, _SIZE
            )
            for rise, right in sides
        }
        free = [side for side, box in boxes.items() if not any(box.overlaps(other) for other in taken)]
        clear = [side for side in free if not any(boxes[side].overlaps(bar) for bar in bars)]
        rise, right = (*clear, *free, (0, True))[0]
        box = boxes[rise, right]
        taken.append(box)
        axes.annotate(
            dot.text,
            (dot.x, dot.height),
            xytext=(_GAP if right else -_GAP, 4 * rise),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            color=dot.colour,
            size=_SIZE,
            path_effects=[_HALO],
            arrowprops={"arrowstyle": "-", "color": dot.colour, "linewidth": 0.6} if abs(rise) > 2 else None,
        )


def _apart(heights: dict[str, float], least: float) -> dict[str, float]:
    """Move heights up until each is at least so far above the one below."""
    found: dict[str, float] = {}
    for name, height in sorted(heights.items(), key=lambda item: item[1]):
        found[name] = max(height, *(other + least for other in found.values())) if found else height
    return found


EXPERIMENT = Experiment(
    name="speech",
    title="Word error rates of a Conformer-Transducer",
    source="Section on speech models, its table",
    full=FULL,
    scaled=SCALED,
    quick=QUICK,
    parts=parts,
    tables=tables,
    claims=claims,
    figure=figure,
    needs=("jiwer",),
)
