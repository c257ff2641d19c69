"""Measure, print, and write ``attention_quality.json``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

INSTALL = "pip install 'hybrid-random-features[bench]'"

try:
    import torch
    from rich.console import Console

    from benchmarks import minilm, report
    from benchmarks.quality import advisor, costs, measure, table
    from benchmarks.quality.candidates import SEPARABLE, SHIFTED, plain_maps
    from benchmarks.quality.flops import exact_flops
    from benchmarks.quality.workers import CORES
    from hrf.advice.errors import FLOOR
    from hrf.report import folder, write
except ModuleNotFoundError as error:
    sys.exit(f"this benchmark needs {error.name}: {INSTALL}")

FIT_PASSAGES = 12
COLUMNS = 170  # that the table needs


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality",
        description="Error of the attention output of every map on a trained Transformer.",
        epilog="The text is read from $HRF_DATA/wikitext2, by default ../shared/data/wikitext2.",
    )
    every = range(1, minilm.N_LAYERS + 1)
    parser.add_argument(
        "--layers", type=int, nargs="+", choices=every, default=[*every], help="which ones (default: all)"
    )
    parser.add_argument(
        "--tokens", type=int, default=minilm.MAX_TOKENS, help="length of a passage (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for the JSON (default: results)"
    )
    parser.add_argument(
        "--plain", action="store_true", help="maps without clusters only; the JSON keeps all other results"
    )
    args = parser.parse_args(argv)
    if not 64 <= args.tokens <= minilm.MAX_TOKENS:
        parser.error(f"--tokens is {args.tokens}; expected between 64 and {minilm.MAX_TOKENS}")
    args.layers = sorted(set(args.layers))
    return args


def capture(tokens: int) -> list[minilm.Attention]:
    """Capture the inputs of attention in every layer: a passage of test text, then the passages to fit to."""
    length = tokens * minilm.CHARACTERS
    parts = (("test", 1), ("train", FIT_PASSAGES))
    texts = [text for split, n in parts for text in minilm.passages(minilm.read_text(split), n, length)]
    return minilm.inputs(texts, tokens)


def run(layers: Sequence[int], tokens: int, out: Path) -> None:
    """Measure, print and write everything."""
    threads = min(CORES, os.cpu_count() or 1)
    torch.set_num_threads(threads)
    start = perf_counter()
    captured = capture(tokens)
    console, errors = Console(highlight=False), Console(stderr=True)
    console.width = max(console.width, COLUMNS)

    def say(sentence: str, met: bool) -> None:
        console.print(sentence, style="green" if met else "red", soft_wrap=True)

    console.print(
        f"MiniLM-L6, {tokens} tokens of WikiText-2, maps fitted to {FIT_PASSAGES} other passages, float64"
    )
    with errors.status("errors of all maps") as status:
        outcomes = measure.measure_layers(captured, layers)
        dim, value_dim = captured[0].queries.shape[-1], captured[0].values.shape[-1]
        per_key = exact_flops(dim, value_dim, 1)
        table.show(console, outcomes, layers, per_key, tokens)
        verdicts = {name: table.verdict(outcomes, name) for name in (SHIFTED, SEPARABLE)}
        for met, sentence in verdicts.values():
            say(sentence, met)
        status.update("advice for every head")
        picks = advisor.pick_maps(captured, layers)
        share, sentence = advisor.within_a_tenth(picks)
        say(sentence, share >= advisor.AIM)
        status.update("costs")
        fits = costs.fit_seconds(captured[layers[0] - 1])
        advice = costs.advice_cost(threads)
    for sentence in costs.sentences(fits, advice, captured[0].queries.shape[1:]):
        console.print(sentence, soft_wrap=True)
    elapsed = perf_counter() - start
    result = {
        "settings": {"tokens": tokens, "layers": layers, "fit_passages": FIT_PASSAGES, "floor": FLOOR},
        "environment": report.environment(),
        "exact_flops_per_token": per_key * tokens,
        "maps": {name: table.as_dict(outcome, per_key, tokens) for name, outcome in outcomes.items()},
        "at_most_half_of_positive": {name: met for name, (met, _) in verdicts.items()},
        "advice": {
            "share_within_a_tenth": share,
            "picks": {layer: [pick._asdict() for pick in found] for layer, found in picks.items()},
            **advice._asdict(),
        },
        "fit_seconds": fits,
        "seconds": elapsed,
    }
    path = folder(out) / "attention_quality.json"
    write(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    console.print(f"Written to {path} after {elapsed:.0f} s")


def renew_plain(layers: Sequence[int], tokens: int, out: Path) -> None:
    """Measure maps without clusters anew, and put them among the results that are there."""
    path = out / "attention_quality.json"
    result, captured = json.loads(path.read_text(encoding="utf-8")), capture(tokens)
    outcomes = measure.measure_layers(captured, layers, [plain_maps])
    per_key = exact_flops(captured[0].queries.shape[-1], captured[0].values.shape[-1], 1)
    console = Console(highlight=False)
    console.width = max(console.width, COLUMNS)
    table.show(console, outcomes, layers, per_key, tokens)
    result["maps"] |= {name: table.as_dict(outcome, per_key, tokens) for name, outcome in outcomes.items()}
    write(path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data or a library is missing."""
    args = arguments(argv)
    try:
        (renew_plain if args.plain else run)(args.layers, args.tokens, args.out)
    except ModuleNotFoundError as error:
        print(f"this benchmark needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
