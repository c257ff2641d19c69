"""Write the tables of README.md and of the docs from measured results: ``make readme``.

The results are the JSON files in ``benchmarks/results``, for which ``docs/results/README.md`` names the commands, and
the files that ``hrf reproduce`` writes to ``docs/results``. A table stands on its page between two comments with its
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.tables import compile_rows, model_rows
from benchmarks.kernel_methods.columns import rows_of
from benchmarks.kernel_methods.table import (
    budget_rows,
    exact_rows,
    map_rows,
    reach_rows,
    scaling_rows,
    setting_rows,
)
from benchmarks.many_machines import arithmetic_rows, rank_rows
from benchmarks.minilm import TEXTS
from benchmarks.speech_tables import (
    encoder_rows,
    loss_rows,
    rate_rows,
    stream_rows,
    trained_rows,
    verdict_rows,
)
from benchmarks.summarised_tables import (
    field_rows,
    generation_rows,
    long_rows,
    neighbour_rows,
    passage_rows,
    passkeys,
    peer_rows,
    perplexity_rows,
    prompt_rows,
    speech_rows,
)
from hrf.report import markdown_table

RESULTS = Path("benchmarks/results")
REPRODUCED = Path("docs/results")

# Names in the results, and what the pages call them.
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

# Rows and columns of the front page: case, peer, words.
SPEED_SUMMARY = (
    ("Positive", "exact (scaled_dot_product_attention)", "`Positive` over `scaled_dot_product_attention`"),
    ("Positive, causal", "exact, causal", "the same, causal"),
    ("Positive, forward + backward", "exact, forward + backward", "the same, with the backward pass"),
    (
        "Positive, causal, forward + backward",
        "exact, causal, forward + backward",
        "the same, causal, with the backward pass",
    ),
    ("Positive", "performer-pytorch", "`Positive` over performer-pytorch"),
)
LENGTHS_SUMMARY = (1024, 4096, 16384)

Ratio = dict[str, Any]


def maps(bench: dict[str, Any]) -> str:
    """Tabulate ratios of feature maps."""
    return _ratios("65,536 vectors, d = 64, width 256", bench["groups"]["maps"]["ratios"])


def sampling(bench: dict[str, Any]) -> str:
    """Tabulate ratios of draws and of a training step."""
    found = [r for name in ("sampling", "sampling, training step") for r in bench["groups"][name]["ratios"]]
    return _ratios("40 classes for each of 700 queries, d = 200, 256 features", found)


def attention(bench: dict[str, Any]) -> str:
    """Tabulate ratios of attention, one column per length."""
    by_length = _by_length(bench)
    everything = {key: ratio for ratios in by_length.values() for key, ratio in ratios.items()}
    rows = [
        [_sentence(ratio), *_medians(ratios.get(key) for ratios in by_length.values())]
        for key, ratio in everything.items()
    ]
    headings = [f"{length:,} tokens" for length in by_length]
    headings[0] = f"ratio at {headings[0]}"
    return markdown_table(["8 heads, d = 64, 256 features", *headings], rows)


def summarised(bench: dict[str, Any]) -> str:
    """Tabulate summarised attention against exact attention, one column per length."""
    found = _summarised(bench)
    lengths = list(next(iter(found.values())))
    rows = [
        [
            name,
            *(
                f"{by_length[n]['median']:.2f} ({_quartiles(by_length[n])})" if n in by_length else ""
                for n in lengths
            ),
        ]
        for name, by_length in found.items()
    ]
    return markdown_table(["times as fast as exact attention", *(f"{n:,} tokens" for n in lengths)], rows)


def speed_summary(bench: dict[str, Any]) -> str:
    """Tabulate attention against its peers, for the front page."""
    by_length = _by_length(bench)
    rows = [
        [words, *_medians((by_length[length].get((case, peer)) for length in LENGTHS_SUMMARY), digits=1)]
        for case, peer, words in SPEED_SUMMARY
    ]
    return markdown_table(["times as fast", *(f"{length:,} tokens" for length in LENGTHS_SUMMARY)], rows)


def quality(result: dict[str, Any]) -> str:
    """Tabulate errors of attention on a trained Transformer."""
    rows = []
    for name, words in QUALITY.items():
        outcome = result["maps"][name]
        layers = outcome["medians"].values()
        spread = f"{_error(min(layers))}–{_error(max(layers))}"
        rows.append([words, _error(outcome["median"]), spread, f"{outcome['flops_per_token']:,.0f}"])
    rows.append(["exact attention", "0", "", f"{result['exact_flops_per_token']:,.0f}"])
    return markdown_table(["map", "error", "smallest and largest over layers", "FLOPs per token"], rows)


def minilm(result: dict[str, Any]) -> str:
    """Tabulate cosines of embeddings by a converted model."""
    rows = []
    for name, found in result["quality"].items():
        exact = f"{found['exact_share']:.1%}" if found["exact_share"] else ""
        rows.append([name, f"{found['mean']:.3f}", f"{found['least']:.3f}", exact])
    return markdown_table(["attention", "mean cosine", "smallest", "pairs exact"], rows)


def converted(result: dict[str, Any]) -> str:
    """Tabulate times of the attention of a converted model against exact attention."""
    rows = [[name, *(f"{r:.1f}" for r in ratios.values())] for name, ratios in result["times"].items()]
    lengths = [f"{int(length):,}" for length in next(iter(result["times"].values()))]
    return markdown_table(["times as fast as exact attention", *lengths], rows)


def of(
    make: Callable[[dict[str, Any]], Iterable[Sequence[str]]],
    result: dict[str, Any],
    columns: Sequence[int] | None = None,
) -> str:
    """Tabulate what a function returns, headings first: all columns, or some of them, in rows that have any."""
    headings, *lines = make(result)
    if columns is not None:
        kept = [[line[column] for column in columns] for line in lines]
        headings, lines = [headings[column] for column in columns], [line for line in kept if any(line[1:])]
    return markdown_table(headings, lines)


# Page by page: the name of a table, the file it comes from, and the function that makes it.
PAGES: dict[Path, dict[str, tuple[Path, Callable[[dict[str, Any]], str]]]] = {
    Path("README.md"): {"speed": (RESULTS / "bench.json", speed_summary)},
    Path("docs/speed.md"): {
        "summarised": (RESULTS / "summarised.json", summarised),
    },
    Path("docs/long-prompts.md"): {
        "prompts": (RESULTS / "long_prompts.json", partial(of, prompt_rows)),
        "passkeys": (RESULTS / "decoder.json", passkeys),
        "generation": (RESULTS / "decoder.json", partial(of, generation_rows)),
    },
    REPRODUCED / "long-prompts-details.md": {
        "perplexity": (RESULTS / "decoder.json", partial(of, perplexity_rows)),
        "peers": (RESULTS / "decoder.json", partial(of, peer_rows)),
        "steps": (RESULTS / "long_prompts.json", partial(of, partial(prompt_rows, what="step"))),
    },
    REPRODUCED / "speed-details.md": {
        "attention": (RESULTS / "bench.json", attention),
        "converted": (RESULTS / "minilm.json", converted),
        "maps": (RESULTS / "bench.json", maps),
        "sampling": (RESULTS / "bench.json", sampling),
    },
    Path("docs/gpus.md"): {"gpu model": (RESULTS / "gpu_model.json", partial(of, model_rows))},
    REPRODUCED / "gpus-details.md": {
        "gpu compile": (RESULTS / "gpu_compile.json", partial(of, compile_rows))
    },
    Path("docs/which-map.md"): {"quality": (RESULTS / "attention_quality.json", quality)},
    REPRODUCED / "many-machines-details.md": {
        "ranks": (RESULTS / "distributed.json", partial(of, rank_rows)),
        "memory": (RESULTS / "distributed.json", partial(of, arithmetic_rows, columns=range(6))),
        "time": (RESULTS / "distributed.json", partial(of, arithmetic_rows, columns=(0, 1, 6, 7, 8))),
    },
    REPRODUCED / "kernel-methods-details.md": {
        "budgets": (RESULTS / "kernel_methods.json", partial(of, budget_rows)),
        "seconds": (RESULTS / "kernel_methods.json", partial(of, reach_rows)),
        "exact": (RESULTS / "kernel_methods.json", partial(of, exact_rows)),
        "maps": (RESULTS / "kernel_methods.json", partial(of, map_rows, columns=range(4))),
        "more maps": (RESULTS / "kernel_methods.json", partial(of, map_rows, columns=(0, 4, 5))),
        "searches": (RESULTS / "kernel_methods.json", partial(of, setting_rows)),
        "columns": (RESULTS / "kernel_columns.json", partial(of, rows_of)),
        "rows": (RESULTS / "kernel_scaling.json", partial(of, scaling_rows)),
        "wide rows": (
            RESULTS / "kernel_scaling.json",
            partial(of, partial(scaling_rows, kind="wide"), columns=range(5)),
        ),
    },
    Path("docs/transformers.md"): {"minilm": (RESULTS / "minilm.json", minilm)},
    REPRODUCED / "speech-details.md": {
        "loss": (RESULTS / "speech.json", partial(of, loss_rows)),
        "encoder": (RESULTS / "speech.json", partial(of, encoder_rows)),
        "stream": (RESULTS / "speech_stream.json", partial(of, stream_rows)),
        "trained": (REPRODUCED / "speech.json", partial(of, trained_rows)),
        "rates": (REPRODUCED / "speech.json", partial(of, rate_rows, columns=range(4))),
        "rates from scratch": (REPRODUCED / "speech.json", partial(of, rate_rows, columns=(0, 4, 5))),
        "verdicts": (REPRODUCED / "speech.json", partial(of, verdict_rows)),
    },
    REPRODUCED / "summarised-details.md": {
        **{
            f"{kind}, {title}": (RESULTS / "minilm.json", partial(of, partial(make, text=text)))
            for kind, make in (("passages", passage_rows), ("long passages", long_rows))
            for text, title in TEXTS.items()
        },
        "neighbours": (RESULTS / "minilm.json", partial(of, neighbour_rows)),
        "speech": (RESULTS / "speech_quality.json", partial(of, speech_rows)),
        **{
            f"field, {length} tokens, equal {kind}": (
                RESULTS / "field.json",
                partial(of, partial(field_rows, length=length, kind=kind)),
            )
            for length in (512, 4096)
            for kind in ("flops", "time")
        },
    },
}


def filled(page: Path, text: str, root: Path) -> str:
    """Return the text of a page with every table made from the results below the root of the repository."""
    for name, (file, make) in PAGES[page].items():
        made = make(json.loads((root / file).read_text(encoding="utf-8")))
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        text, n = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n{made}\n{end}", text, flags=re.DOTALL)  # noqa: B023
        if n != 1:
            raise ValueError(f"{page} has {n} places for the table {name!r}; expected one")
    return text


def _summarised(bench: dict[str, Any]) -> dict[str, dict[int, Ratio]]:
    """Return ratios by heads and dimension, then by length."""
    found: dict[str, dict[int, Ratio]] = {}
    for group in bench["groups"].values():
        settings = group["settings"]
        if "tokens" in settings:
            for ratio in group["ratios"]:
                row = f"{settings['heads']} heads, d = {settings['dim']}"
                if "backward" in ratio["case"]:
                    row += ", with the backward pass"
                found.setdefault(row, {})[settings["tokens"]] = ratio
    return found


def _by_length(bench: dict[str, Any]) -> dict[int, dict[tuple[str, str], Ratio]]:
    return {
        group["settings"]["length"]: {(r["case"], r["against"]): r for r in group["ratios"]}
        for group in bench["groups"].values()
        if "length" in group["settings"]
    }


def _medians(ratios: Iterable[Ratio | None], digits: int = 2) -> list[str]:
    return ["" if ratio is None else f"{ratio['median']:.{digits}f}" for ratio in ratios]


def _ratios(heading: str, ratios: Sequence[Ratio]) -> str:
    rows = [[_sentence(r), f"{r['median']:.2f}", _quartiles(r)] for r in ratios]
    return markdown_table([heading, "ratio", "quartiles"], rows)


def _sentence(ratio: Ratio) -> str:
    words = "times as fast as" if ratio["measure"] == "speed-up" else "times the time of"
    return f"{ratio['case']}, {words} {ratio['against']}"


def _quartiles(ratio: Ratio) -> str:
    return "–".join(f"{quartile:.2f}" for quartile in ratio["quartiles"])


def _error(number: float) -> str:
    return f"{number:.2f}" if number < 100 else "> 100"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page, page.read_text(encoding="utf-8"), Path()), encoding="utf-8")
