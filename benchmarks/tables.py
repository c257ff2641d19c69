"""Write the tables of the README from measured results: ``python -m benchmarks.tables``, or ``make readme``.

The results are the JSON files in ``benchmarks/results``, as `make bench`, `make bench-attention-quality` and
`make example-minilm` write them. A table stands between two comments with its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS, README = Path("benchmarks/results"), Path("README.md")

# Names in the results, and what the README calls them.
QUALITY = {
    "uniform": "uniform attention",
    "positive (FAVOR+)": "positive (FAVOR+)",
    "FAVOR#": "FAVOR#",
    "trigonometric": "trigonometric",
    "angular hybrid": "angular hybrid",
    "fitted (centred, full A)": "shifted to the means, A fitted",
    "clustered 16×16, shifted": '16 × 16 clusters, shifted (`features="dense"`)',
    "clustered 64×64, separable": "64 × 64 clusters, separable",
    "clustered 64×64, separable + exact pairs": "64 × 64 clusters, separable, some pairs exact",
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def maps(bench: dict[str, Any]) -> str:
    """Ratios of feature maps that have a target."""
    found = [ratio for ratio in bench["groups"]["maps"]["ratios"] if ratio["target"] is not None]
    return _ratios("65,536 vectors, d = 64, width 256", found)


def sampling(bench: dict[str, Any]) -> str:
    """Ratios of draws and of a training step."""
    found = [r for name in ("sampling", "sampling, training step") for r in bench["groups"][name]["ratios"]]
    return _ratios("40 classes for each of 700 queries, d = 200, 256 features", found)


def attention(bench: dict[str, Any]) -> str:
    """Ratios of attention by length, those with a target at some length."""
    by_length = {
        group["settings"]["length"]: {(r["case"], r["against"]): r for r in group["ratios"]}
        for group in bench["groups"].values()
        if "length" in group["settings"]
    }
    everything = {key: r for ratios in by_length.values() for key, r in ratios.items()}
    aimed = {key for ratios in by_length.values() for key, r in ratios.items() if r["target"] is not None}
    rows = []
    for key, ratio in everything.items():
        if key in aimed:
            there = [ratios.get(key) for ratios in by_length.values()]
            aims = {_target(r) for r in there if r is not None and r["target"] is not None}
            rows.append([_sentence(ratio), *(f"{r['median']:.2f}" if r else "" for r in there), *aims])
    headings = [f"{length:,} tokens" for length in by_length]
    headings[0] = f"ratio at {headings[0]}"
    return table(["8 heads, d = 64, 256 features", *headings, "target"], rows)


def quality(result: dict[str, Any]) -> str:
    """Errors of attention on a trained Transformer."""
    rows = []
    for name, words in QUALITY.items():
        outcome = result["maps"][name]
        layers = outcome["medians"].values()
        spread = f"{_error(min(layers))}–{_error(max(layers))}"
        rows.append([words, _error(outcome["median"]), spread, f"{outcome['flops_per_token']:,.0f}"])
    rows.append(["exact attention", "0", "", f"{result['exact_flops_per_token']:,.0f}"])
    return table(["map", "error", "least and largest of the layers", "FLOPs a token"], rows)


def minilm(result: dict[str, Any]) -> str:
    """Cosines of embeddings, and times of attention."""
    rows = []
    for name, found in result["quality"].items():
        exact = f"{found['exact_share']:.1%}" if found["exact_share"] else ""
        times = [f"{ratio:.1f}" for ratio in result["times"][name].values()]
        rows.append([name, f"{found['mean']:.3f}", f"{found['least']:.3f}", exact, *times])
    lengths = [f"{int(length):,}" for length in next(iter(result["times"].values()))]
    lengths[0] = f"times as fast as exact, L = {lengths[0]}"
    return table(["attention", "mean cosine", "least", "pairs exact", *lengths], rows)


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "maps": ("bench.json", maps),
    "attention": ("bench.json", attention),
    "sampling": ("bench.json", sampling),
    "quality": ("attention_quality.json", quality),
    "minilm": ("minilm.json", minilm),
}


def filled(text: str, results: Path) -> str:
    """The text with every table made anew."""
    for name, (file, make) in TABLES.items():
        made = make(json.loads((results / file).read_text(encoding="utf-8")))
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        text, n = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n{made}\n{end}", text, flags=re.DOTALL)  # noqa: B023
        if n != 1:
            raise ValueError(f"the text has {n} places for the table {name!r}; expected one")
    return text


def _ratios(heading: str, ratios: Sequence[dict[str, Any]]) -> str:
    rows = [[_sentence(r), f"{r['median']:.2f}", _quartiles(r), _target(r)] for r in ratios]
    return table([heading, "ratio", "quartiles", "target"], rows)


def _sentence(ratio: dict[str, Any]) -> str:
    words = "times as fast as" if ratio["measure"] == "speed-up" else "times the time of"
    return f"{ratio['case']}, {words} {ratio['against']}"


def _quartiles(ratio: dict[str, Any]) -> str:
    return "–".join(f"{quartile:.2f}" for quartile in ratio["quartiles"])


def _target(ratio: dict[str, Any]) -> str:
    if ratio["target"] is None:
        return ""
    return f"{'≥' if ratio['measure'] == 'speed-up' else '≤'} {ratio['target']:g}"


def _error(number: float) -> str:
    return f"{number:.2f}" if number < 100 else "> 100"


if __name__ == "__main__":
    README.write_text(filled(README.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
