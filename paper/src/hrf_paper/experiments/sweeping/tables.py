"""Delivered shares and FLOPs of all methods, and trainings without a rule for denominators."""

from __future__ import annotations

from hrf.report import number
from hrf_paper.experiments.experiment import Results, Table
from hrf_paper.experiments.shared.scaled_down import scaled_down
from hrf_paper.experiments.sweeping.measure import FULL, Settings, key
from hrf_paper.experiments.sweeping.shares import method_parts, share

__all__ = ["tables"]


def tables(settings: Settings, results: Results) -> list[Table]:
    """Show what policies deliver, what a decision costs, and which losses stay numbers."""
    return [
        _policies(settings, results),
        _costs(settings, results),
        *_divided(settings, results),
        *scaled_down(settings, FULL),
    ]


def _policies(settings: Settings, results: Results) -> Table:
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


def _costs(settings: Settings, results: Results) -> Table:
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


def _divided(settings: Settings, results: Results) -> list[Table]:
    rows = []
    for name in settings.divided:
        step, loss = results[name]["diverged"], results[name]["loss"]
        rows.append((name, "none" if step is None else f"{step}", "" if loss is None else f"{loss:.2f}"))
    caption = f"{settings.divided_steps} steps each"
    title = "Regular features without a rule for denominators"
    return [Table(title, ("attention", "first NaN step", "mean loss"), rows, caption=caption)] if rows else []
