"""A speech model with summarised attention, without fine-tuning: ``python -m examples.speech_quality``.

DistillMOS (Stahl and Gamper, 2025) rates the quality of speech, from 1 to 5: convolutions, then 7 layers of attention
with 8 heads, d = 25, over 384 frames. Its layers are PyTorch's own, so that `hrf.nn.MultiheadAttention.from_torch`
replaces them. Excerpts of LibriSpeech go through the model with exact and with summarised attention: the cosine of the
last hidden states, frame by frame, and the rating.

The weights come with the package. Its dependency torchaudio is not needed here, so install without dependencies:

    pip install --no-deps distillmos xls-r-sqa && pip install soundfile
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

INSTALL = (
    "pip install --no-deps distillmos xls-r-sqa && pip install soundfile 'hybrid-random-features[bench]'"
)

try:
    import soundfile
    import torch
    from rich.console import Console
    from rich.progress import track
    from torch import Tensor
    from torch.nn import functional as F

    import hrf
    from benchmarks.minilm import data_folder
    from hrf.report import folder, table, write

    sys.modules.setdefault(
        "torchaudio", ModuleType("torchaudio")
    )  # reads files there, which soundfile does here
    import distillmos
except ModuleNotFoundError as error:
    sys.exit(f"this example needs {error.name}: {INSTALL}")

RECORDINGS = Path("librispeech-excerpt", "LibriSpeech", "train-clean-100")
SAMPLES = 122_880  # of an excerpt: 384 frames at 16 kHz, the length that the model was trained with
TOLERANCES = (1.0, 2.0, math.inf)
TARGET = 0.998  # mean cosine, by default


def excerpts() -> list[Tensor]:
    """Return the beginnings of recordings that are long enough, ``(1, SAMPLES)`` each, with a peak of 1."""
    paths = sorted((data_folder() / RECORDINGS).rglob("*.flac"))
    if not paths:
        raise FileNotFoundError(f"no recordings below {data_folder() / RECORDINGS}; set HRF_DATA")
    sounds = (torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in paths)
    return [sound[None, :SAMPLES] / sound[:SAMPLES].abs().max() for sound in sounds if len(sound) >= SAMPLES]


def summarised(transformer: Any, method: hrf.SummarisedAttention) -> Any:
    """Return a copy of the Transformer with summarised attention in all layers."""
    mine = copy.deepcopy(transformer)
    for layer in mine.transformer.transformer_encoder.layers:
        layer.self_attn = hrf.nn.MultiheadAttention.from_torch(layer.self_attn, attention=method)
    return mine


@torch.inference_mode()
def outputs(transformer: Any, features: Sequence[Tensor]) -> list[tuple[Tensor, float]]:
    """Return the last hidden states ``(frames, width)`` and the rating of every excerpt."""
    kept: list[Tensor] = []
    hook = transformer.transformer.register_forward_hook(lambda _, __, output: kept.append(output[0]))
    ratings = [1 + 4 * float(transformer(u)) for u in shown("attention", features)]
    hook.remove()
    return list(zip(kept, ratings, strict=True))


def shown(what: str, batches: Sequence[Tensor]) -> Any:
    """Iterate over batches, with a progress bar."""
    return track(batches, what, console=Console(stderr=True), transient=True)


def compared(mine: Sequence[tuple[Tensor, float]], exact: Sequence[tuple[Tensor, float]]) -> dict[str, float]:
    """Compare hidden states and ratings with the exact ones."""
    pairs = list(zip(mine, exact, strict=True))
    means = torch.stack([F.cosine_similarity(u, known, dim=-1).mean() for (u, _), (known, _) in pairs])
    return {
        "mean": float(means.mean()),
        "least": float(means.min()),
        "largest_rating_difference": max(abs(rating - known) for (_, rating), (_, known) in pairs),
    }


def measure() -> dict[str, Any]:
    """Compare hidden states and ratings for each tolerance."""
    sounds = excerpts()
    # PyTorch's fast path for inference would compute exact attention from the weights of the layers.
    torch.backends.mha.set_fastpath_enabled(False)
    model = distillmos.ConvTransformerSQAModel().eval()
    with torch.inference_mode():
        features = [model.cnn(sound).mT for sound in shown("convolutions", sounds)]
    exact = outputs(model.transformer_pool_attn, features)
    found: dict[str, Any] = {"excerpts": len(sounds), "spread": _spread([rating for _, rating in exact])}
    for tolerance in TOLERANCES:
        report = hrf.SummaryReport()
        method = hrf.SummarisedAttention(tolerance=tolerance, report=report)
        mine = outputs(summarised(model.transformer_pool_attn, method), features)
        found[f"tolerance {tolerance:g}"] = compared(mine, exact) | {"exact_share": report.exact_share}
    return found


def _spread(ratings: Sequence[float]) -> float:
    """Return the standard deviation."""
    return float(torch.tensor(ratings).std())


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the results of `measure`."""
    rows = []
    for tolerance in TOLERANCES:
        row = found[f"tolerance {tolerance:g}"]
        aim = f"{TARGET} {'met' if row['mean'] >= TARGET else 'missed'}" if tolerance == 1 else ""
        cells = [f"{row['mean']:.5f}", aim, f"{row['least']:.5f}", f"{row['exact_share']:.1%}"]
        rows.append([f"{tolerance:g}", *cells, f"{row['largest_rating_difference']:.3f}"])
    header = ["tolerance", "mean cosine", "target", "smallest", "pairs exact", "ratings differ by at most"]
    title = (
        f"DistillMOS, {found['excerpts']} excerpts: hidden states of frames, compared with exact attention"
    )
    console.print(table(header, rows, title=title))
    console.print(f"Ratings have a standard deviation of {found['spread']:.2f} over the excerpts.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.speech_quality",
        description="Ratings of DistillMOS with its attention replaced by summarised attention.",
        epilog="Recordings are read from $HRF_DATA/librispeech-excerpt, by default below ../shared/data.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results"),
        help="folder for speech_quality.json (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    try:
        found = measure()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    show(Console(), found)
    path = folder(args.out) / "speech_quality.json"
    write(path, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
