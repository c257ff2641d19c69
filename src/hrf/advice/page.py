"""Report of advice: a table on the terminal, a figure, JSON, the best map, and one HTML page with all of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from hrf import pages, report
from hrf.advice.advisor import Advice
from hrf.advice.figure import figure
from hrf.advice.findings import HEADER, Candidate, cells, counts, rebuild, terms_of, uniform_cells

__all__ = ["head_page", "page", "publish", "publish_heads", "to_json"]

_BEST = "best.safetensors"


def publish(advice: Advice, out: Path, smaller: Sequence[Advice] = ()) -> None:
    """Save all files in the directory ``out``; print the table and sentences about it.

    Args:
        advice: the advice.
        out: a directory.
        smaller: advice on the same data at smaller budgets, for the page.
    """
    files = {
        "advice.png": report.png(figure(advice)),
        "advice.json": to_json(advice).encode(),
        _BEST: _stored(advice),
        "report.html": page(advice, smaller).encode(),
    }
    for name, content in files.items():
        report.write(out / name, content)
    console = Console(highlight=False)
    console.print(table(advice), "")
    for sentence in advice.sentences():
        console.print(sentence, markup=False)
    if advice.warning:
        console.print(f"Warning: {advice.warning}", style="bold", markup=False)
    for name, why in advice.left_out.items():
        console.print(f"Left out: {name}: {why}", markup=False)
    _print_paths(console, out, files)


def publish_heads(heads: Sequence[Advice], out: Path) -> None:
    """Do as `publish` for advice by head: one table of the best maps, one page, one map per head."""
    maps = {f"best-{place}.safetensors": _stored(advice) for place, advice in enumerate(heads)}
    found = [advice.to_dict() for advice in heads]
    files = {"advice.json": _text(found).encode(), **maps, "report.html": head_page(heads).encode()}
    for name, content in files.items():
        report.write(out / name, content)
    console = Console(highlight=False)
    header = ("head", *HEADER[:1], *HEADER[5:7], terms_of(heads[0].settings).reference)
    rows = [
        (f"{place}", *cells(best)[:1], *cells(best)[5:7], report.number(advice.uniform))
        for place, advice in enumerate(heads)
        for best in advice.ranking[:1]
    ]
    console.print(report.table(header, rows, title=_heads_title(heads)), "")
    for place, advice in enumerate(heads):
        if advice.warning:
            console.print(f"Warning, head {place}: {advice.warning}", style="bold", markup=False)
    _print_paths(console, out, ["advice.json", *list(maps)[:1], "report.html"])


def _print_paths(console: Console, out: Path, names: Sequence[str] | dict[str, bytes]) -> None:
    console.print()
    for name in names:
        console.print(f"  {out / name}", soft_wrap=True, markup=False)
    console.print(
        f"Open {out / 'report.html'} in a browser, or call again with --open.", soft_wrap=True, markup=False
    )


def table(advice: Advice) -> Table:
    """Build the table: one row per map, best first, then uniform attention, then the maps that are not ranked."""
    s = advice.settings
    rows = [
        *map(cells, advice.ranking),
        uniform_cells(advice),
        *map(cells, advice.beyond),
    ]
    reference = len(advice.ranking)
    return report.table(
        HEADER,
        rows,
        title=f"{counts(s)}, budget {s.budget} by {s.unit}",
        caption="; ".join(filter(None, [advice.legend, advice.glossary])),
        styles={0: "bold green", reference: "dim"},
        sections=[reference],
    )


def to_json(advice: Advice) -> str:
    """Write settings and candidates as JSON, without times: one seed gives one text."""
    return _text(advice.to_dict())


def _text(found: Any) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _stored(advice: Advice) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / _BEST
        advice.best.save(path)
        return path.read_bytes()


def page(advice: Advice, smaller: Sequence[Advice] = ()) -> str:
    """Write one self-contained page: what is best, errors and costs of all maps, how to use the best one.

    Args:
        advice: the advice.
        smaller: advice on the same data at smaller budgets.
    """
    name = advice.ranking[0].name
    _, *others = advice.sentences()  # the first is the headline
    sentences = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in others)
    words = f"<p><small>{escape(advice.glossary)}.</small></p>\n" if advice.glossary else ""
    body = f"""<h1>{escape(advice.headline)}</h1>
{_about(advice)}
{_warning(advice)}{sentences}
{words}<div id="live"></div>
<h2>How to use {escape(name)}</h2>
<pre tabindex="0">{escape(_usage(advice))}</pre>
<p><small>{escape(_explanation(advice))}</small></p>
<div class="plain"><h2>All maps</h2>
{_all_maps(advice)}</div>
<p><small>{escape(advice.legend)}.</small></p>
{_left_out(advice)}"""
    return pages.page(f"hrf advise: {name}", body, _data([advice], smaller))


def head_page(heads: Sequence[Advice]) -> str:
    """Write one self-contained page on the maps of all heads."""
    first = heads[0]
    warnings = sum(advice.warning is not None for advice in heads)
    warned = f"no map is good enough at this budget in {warnings} of {len(heads)} heads"
    warning = f'<p class="warning">Warning: {warned}</p>\n' if warnings else ""
    tables = "".join(f"<h2>Head {place}</h2>\n{_all_maps(advice)}" for place, advice in enumerate(heads))
    body = f"""<h1>{escape(_heads_title(heads))}</h1>
{_about(first)}
{warning}<div id="live"></div>
<div class="plain">{tables}</div>
<p><small>{escape(first.legend)}.</small></p>
"""
    return pages.page("hrf advise", body, _data(heads))


def _heads_title(heads: Sequence[Advice]) -> str:
    """Say which map is the best in most heads."""
    names = [advice.ranking[0].name for advice in heads]
    common = max(dict.fromkeys(names), key=names.count)
    return f"{common} is the best map at this budget in {names.count(common)} of {len(heads)} heads"


def _warning(advice: Advice) -> str:
    return f'<p class="warning">Warning: {escape(advice.warning)}</p>\n' if advice.warning else ""


def _data(heads: Sequence[Advice], smaller: Sequence[Advice] = ()) -> dict[str, Any]:
    """Return what the script of the page reads."""
    s = heads[0].settings
    found = [
        {
            "name": f"head {place}",
            "uniform": advice.uniform,
            "maps": [one for each in [advice, *smaller] for one in _plain_maps(each)],
        }
        for place, advice in enumerate(heads)
    ]
    terms = terms_of(s)
    return {
        "kind": "advice",
        "error": terms.error,
        "reference": terms.reference,
        "unit": s.unit,
        "heads": found,
    }


def _plain_maps(advice: Advice) -> list[dict[str, Any]]:
    s, ranked = advice.settings, len(advice.ranking)
    return [
        {
            "name": c.name,
            "family": c.family,
            "budget": s.budget,
            "width": c.width,
            "state": c.feature_map.feature_dim,
            "flops": c.flops,
            "micros": c.seconds * 1e6,
            "error": c.error,
            "low": c.low,
            "high": c.high,
            "predicted": c.predicted,
            "ranked": place < ranked,
            "note": c.note,
            "code": rebuild(c, s),
        }
        for place, c in enumerate([*advice.ranking, *advice.beyond])
    ]


def _about(advice: Advice) -> str:
    """Describe data and settings in a paragraph."""
    s = advice.settings
    if s.for_machines:
        return f"""<p class="about">
{counts(s)} (norm {s.query_norm:.2f} after multiplication by {s.scale**0.5:.4g}).
At most {s.budget} features, seed {s.seed}. Maps were fitted to three quarters of the rows; errors are measured on
{s.held_out[0]:,} others, 95 % intervals from {s.n_redraws} draws.</p>"""
    return f"""<p class="about">
{s.n_queries:,} queries (norm {s.query_norm:.2f}) and {s.n_keys:,} keys (norm {s.key_norm:.2f}), d = {s.dim}.
Budget {s.budget} by {s.unit}, objective {s.objective}, scale {s.scale:g}, seed {s.seed}.
Maps were fitted to half of the data; errors are measured on {s.held_out[0]:,} queries and {s.held_out[1]:,} keys
of the other half, 95 % intervals from {s.n_redraws} draws.</p>"""


def _usage(advice: Advice) -> str:
    """Four lines of Python that load the map and compute attention, or features, with it."""
    if advice.settings.for_machines:
        return "\n".join(
            [
                "import hrf, torch",
                f'phi = hrf.load("{_BEST}")',
                f"features = phi.queries(torch.as_tensor(rows) * {advice.settings.scale**0.5:.9g})",
                f"transformer = hrf.learn.RandomFeatures(gamma={_gamma(advice):.9g}, feature_map=phi)",
            ]
        )
    return "\n".join(
        [
            "import hrf",
            f'phi = hrf.load("{_BEST}")',
            "q, k, v = (u[None] for u in (queries, keys, values))  # one head",
            f"output = hrf.attention(q, k, v, phi, scale={advice.settings.scale:.9g})[0]",
        ]
    )


def _gamma(advice: Advice) -> float:
    """Return γ of the kernel: maps of exp(−‖x − y‖²/2) take inputs multiplied by √(2γ)."""
    return advice.settings.scale / (2 if advice.best.kernel == "gaussian" else 1)


def _explanation(advice: Advice) -> str:
    """Say what the names in `_usage` stand for."""
    if advice.settings.for_machines:
        return (
            "rows has one row per point; a linear model on features is a kernel machine. transformer does the same in "
            "scikit-learn."
        )
    return (
        "queries, keys and values are tensors with one row per token; output is linear-time attention.\n"
        f"phi.estimate(queries, keys) gives the kernel itself{_scaled(advice)}."
    )


def _scaled(advice: Advice) -> str:
    """Say what inputs of the map have to be multiplied by."""
    root = advice.settings.scale**0.5
    return "" if root == 1 else f", for queries and keys multiplied by {root:.9g}"


def _all_maps(advice: Advice) -> str:
    """Build the table of all maps in HTML."""
    rows = [_row(c, "best" if place == 0 else "") for place, c in enumerate(advice.ranking)]
    ignored = f"ignores {terms_of(advice.settings).ignores}"
    rows.append(_html_row(uniform_cells(advice), ignored, "uniform"))
    rows += [_row(c, "") for c in advice.beyond]
    return f'<div class="wide">{pages.table([*HEADER, "note"], rows, ["note"])}</div>'


def _left_out(advice: Advice) -> str:
    """List the candidates that failed; nothing if there are none."""
    if not advice.left_out:
        return ""
    items = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in advice.left_out.items())
    return f"<h2>Left out</h2>\n<ul>{items}</ul>\n"


def _row(candidate: Candidate, style: str) -> str:
    return _html_row(cells(candidate), candidate.note, style)


def _html_row(texts: tuple[str, ...], note: str, style: str) -> str:
    return pages.row([*texts, note], classes=["note"], style=style)
