"""A trained Transformer with its attention replaced, without fine-tuning: ``python -m examples.minilm``.

MiniLM-L6 (6 layers × 12 heads, d = 32) turns a text into a vector. Maps are fitted to 12 passages of WikiText-2's
training text; then 50 passages of its test text, of 256 to 512 tokens, are embedded by the exact model and by the
converted one. A cosine of 1 says that nothing was lost. Summarised attention, which is not fitted, has parts of its
own: ``minilm_summarised.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

INSTALL = "pip install 'hybrid-random-features[bench]'"

try:
    import torch
    from rich.console import Console
    from rich.progress import track
    from torch import Tensor
    from torch.nn import functional as F

    import hrf
    from benchmarks import minilm
    from benchmarks.timing import best_times
    from examples import minilm_summarised as summarised
    from hrf.integrations.transformers import convert
    from hrf.integrations.transformers.conversion import FITS
    from hrf.report import folder, table, write
except ModuleNotFoundError as error:
    sys.exit(f"this example needs {error.name}: {INSTALL}")

FIT_PASSAGES, TEST_PASSAGES = 12, 50
SHORTEST, LONGEST = 256, minilm.MAX_TOKENS
MEASURED = 8  # test passages on which `convert` measures the error of each layer
LENGTHS = (1024, 2048, 4096, 8192, 16384)

clustered = partial(hrf.ClusteredHybrid.fit, base="separable", n_clusters=(64, 64), recenter=True)


class Candidate(NamedTuple):
    """A kind of map, and the mean cosine that it should reach."""

    name: str
    feature_map: Any
    target: float | None = None


CANDIDATES = (
    Candidate("positive, 256 features", "positive"),
    Candidate("angular hybrid, m = n = 8", "angular"),
    Candidate("clustered 64×64, separable", clustered, 0.96),
    Candidate("clustered 64×64, some pairs exact", partial(clustered, exact_share=0.1), 0.985),
)


def passages(tokenizer: Any, split: str, lengths: Sequence[int]) -> list[Tensor]:
    """Return passages of WikiText-2 with these numbers of tokens, ``(1, tokens)`` each."""
    texts = minilm.passages(minilm.read_text(split), len(lengths), LONGEST * minilm.CHARACTERS)
    return [minilm.encode(tokenizer, text, tokens) for text, tokens in zip(texts, lengths, strict=True)]


def shown(batches: Sequence[Tensor]) -> Iterable[Tensor]:
    """Iterate over batches, with a progress bar."""
    return track(batches, description="embedding", console=Console(stderr=True), transient=True)


def measure_quality() -> dict[str, dict[str, float]]:
    """Convert the model with each kind of map, and compare its embeddings with the exact model's."""
    tokenizer, model = minilm.load()
    model.double()  # the angular hybrid is so far off that float32 overflows
    fit = passages(tokenizer, "train", [LONGEST] * FIT_PASSAGES)
    lengths = torch.linspace(SHORTEST, LONGEST, TEST_PASSAGES).int().tolist()
    test = passages(tokenizer, "test", lengths)
    exact = minilm.embeddings(model, shown(test))
    found = {}
    for candidate in CANDIDATES:
        report = convert(
            model, fit, feature_map=candidate.feature_map, test_batches=test[:: TEST_PASSAGES // MEASURED]
        )
        cosines = (minilm.embeddings(model, shown(test)) * exact).sum(-1)
        found[candidate.name] = {
            "mean": float(cosines.mean()),
            "least": float(cosines.min()),
            "median_error": median(error for layer in report.layers.values() for error in layer.errors),
            "exact_share": mean(layer.exact_share for layer in report.layers.values()),
        }
    return found


def show_quality(console: Console, found: dict[str, dict[str, float]]) -> None:
    """Print the results of `measure_quality`."""
    rows = []
    for name, _, target in CANDIDATES:
        row, aim = found[name], ""
        if target is not None:
            aim = f"{target:g} {'met' if row['mean'] >= target else 'missed'}"
        exact = f"{row['exact_share']:.1%}" if row["exact_share"] else ""
        error = f"{row['median_error']:.2g}"
        rows.append([name, f"{row['mean']:.3f}", aim, f"{row['least']:.3f}", error, exact])
    header = ["attention", "mean cosine", "target", "smallest", "median error of heads", "pairs exact"]
    title = f"MiniLM-L6: embeddings of {TEST_PASSAGES} passages, compared with exact attention"
    console.print(table(header, rows, title=title))


@torch.inference_mode()
def measure_times() -> dict[str, dict[str, float]]:
    """Measure the time of exact attention over ours, on inputs of one layer, repeated to each length."""
    texts = minilm.passages(minilm.read_text("train"), FIT_PASSAGES, LONGEST * minilm.CHARACTERS)
    layer = minilm.inputs(texts, LONGEST)[minilm.N_LAYERS // 2]
    tokens = [u.movedim(1, 0).flatten(1, 2).float() for u in layer]  # (heads, tokens, d)
    maps = {}
    for name, feature_map, _ in CANDIDATES:
        fit = FITS[feature_map] if isinstance(feature_map, str) else feature_map
        maps[name] = fit(*tokens[:2], heads=len(tokens[0]))
    ratios: dict[str, dict[str, float]] = {name: {} for name in maps}
    for length in track(LENGTHS, description="timing", console=Console(stderr=True), transient=True):
        rows = torch.arange(length) % tokens[0].shape[1]
        inputs = [u[None, :, rows] for u in tokens]
        calls = {name: partial(hrf.attention, *inputs, phi, scale=1.0) for name, phi in maps.items()}
        seconds = best_times({"exact": partial(F.scaled_dot_product_attention, *inputs, scale=1.0)} | calls)
        for name in maps:
            ratios[name][str(length)] = seconds["exact"] / seconds[name]
    return ratios


def show_times(console: Console, found: dict[str, dict[str, float]]) -> None:
    """Print the results of `measure_times`."""
    rows = [[name, *(f"{ratio:.2f}" for ratio in ratios.values())] for name, ratios in found.items()]
    header = ["attention", *(f"L = {n}" for n in LENGTHS)]
    console.print(table(header, rows, title="Exact attention takes … times as long"))


# Name: what measures, and what prints.
PARTS: dict[str, tuple[Callable[[], Any], Callable[[Console, Any], None]]] = {
    "quality": (measure_quality, show_quality),
    "times": (measure_times, show_times),
    "summarised": (summarised.measure_passages, summarised.show_passages),
    "long": (summarised.measure_long, summarised.show_long),
}


def record(path: Path, part: str, found: Any) -> None:
    """Write the numbers of one part to the file, which keeps the numbers of the others."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    folder(path.parent)
    write(path, (json.dumps(known | {part: found}, indent=1, ensure_ascii=False) + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data or a library is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.minilm",
        description="Text embeddings of MiniLM-L6 with its attention replaced by linear attention.",
        epilog="Texts are read from $HRF_DATA/wikitext2 and $HRF_DATA/ptb, by default below ../shared/data.",
    )
    parser.add_argument("part", nargs="*", default=[*PARTS], help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for minilm.json (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.part) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 150  # a pipe or a file has room
    try:
        for part in args.part:
            measure, show = PARTS[part]
            found = measure()
            show(console, found)
            record(args.out / "minilm.json", part, found)
    except ModuleNotFoundError as error:
        print(f"this example needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
