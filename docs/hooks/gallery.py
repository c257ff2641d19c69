"""Gallery of reproductions, from ``docs/results/*.json``: for each claim the paper's value, ours, and a verdict.

A line ``{{ gallery }}`` becomes the whole gallery, from the files that ``hrf reproduce`` writes: ``experiment``,
``title``, ``command``, ``claims`` and, for measured times, ``timings.claims``; the figure is the PNG beside the JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hrf.report import markdown_table
from hrf_paper.experiments.experiment import RULE, verdict_text

__all__ = ["gallery", "on_page_markdown"]

RESULTS = Path(__file__).parents[1] / "results"

# In the order of the page, with the subject of each experiment.
EXPERIMENTS = {
    "angles": "relative error of every estimator over the angle, at one width",
    "mse-surface": "MSE over angle and length, trigonometric, positive and angular features",
    "pointwise": "estimates and relative errors over the angle, d = 64",
    "uci": "errors on pairs of the wine and Boston data (Table 1)",
    "clustering": "clustered data, least and largest MSE of 20 repetitions",
    "max-relative-error": "the largest relative error on a sphere and the bound of Theorem 3.5",
    "cost": "cost of features as wide as mn",
    "lambda": "estimates of the angular and Gaussian coefficients",
    "ptb-metrics": "softmax distributions of a language model on Penn Treebank (Section 4.3)",
    "wikitext2-metrics": "softmax distributions of a language model on WikiText-2, with lengths near 1",
    "sampled-softmax": "language models trained with drawn words",
    "speech": "word error rates of a Conformer-Transducer with any attention (section on speech)",
    "locomotion": "a quadruped on stepping stones, with attention in its policy (section on robotics)",
}
# Classes of the style sheet, by verdict.
_CLASSES = {"holds": "holds", "partly": "open", "fails": "fails", "beyond": "open"}
_KEYS = ("experiment", "title", "claims", "timings", "command")
_COUNTED = ("matched", "total", "cases")
_CLAIM_KEYS = ("claim", "paper", "ours", "verdict", "sentence", "matching", "criterion", *_COUNTED)


def gallery(folder: Path) -> str:
    """Return the page's Markdown: the rule, all claims in one table, each experiment, and missing results."""
    results = {result["experiment"]: result for result in map(_read, sorted(folder.glob("*.json")))}
    names = [*EXPERIMENTS, *(name for name in results if name not in EXPERIMENTS)]
    present = [results[name] for name in names if name in results]
    missing = [name for name in names if name not in results]
    parts = []
    if present:
        rows = [
            [f"[{result['experiment']}](#{result['experiment']})", *_cells(claim)]
            for result in present
            for claim in _claims(result)
        ]
        parts += [RULE, markdown_table(["experiment", "verdict", "claim", "paper", "ours"], rows)]
        parts += [_experiment(result) for result in present]
    if missing:
        lines = [f"- `{name}`: {EXPERIMENTS[name]}" for name in missing]
        parts.append("\n".join(["## Not yet here", "", "Results that are not committed yet:", "", *lines]))
    return "\n\n".join(parts)


def _read(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    lacking = [key for key in _KEYS if key not in result]
    if not lacking:
        for number, claim in enumerate(_claims(result)):
            lacking += [f"claims[{number}].{key}" for key in _CLAIM_KEYS if key not in claim]
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(lacking)}")
    return result


def _claims(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [*result["claims"], *result["timings"]["claims"]]


def _verdict(claim: dict[str, Any]) -> str:
    text = verdict_text(*(claim[key] for key in _COUNTED))
    # The bold part never wraps, so that it has to be short.
    criterion = f" ({claim['criterion']})" if claim["criterion"] else ""
    return f"**{text}**{{ .{_CLASSES[claim['verdict']]} }}{criterion}"


def _cells(claim: dict[str, Any]) -> list[str]:
    words = f"{claim['claim']} *At {claim['matching']}.*" if claim["matching"] else claim["claim"]
    return [_verdict(claim), words, claim["paper"], claim["ours"]]


def _experiment(result: dict[str, Any]) -> str:
    name = result["experiment"]
    verdicts = [f"- {_verdict(claim)}: {claim['sentence']}" for claim in _claims(result)]
    return "\n".join(
        [
            f"## {result['title']} {{ #{name} }}",
            "",
            *verdicts,
            "",
            f"![{result['title']}](results/{name}.png)",
            "",
            f"```sh\n{result['command']}\n```",
        ]
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the gallery; mkdocs calls this function for each page."""
    return markdown.replace("{{ gallery }}", gallery(RESULTS))
