"""A pretrained decoder, SmolLM2-135M, with summarised attention in all layers, nothing trained.

``make example-decoder`` runs four parts: perplexity on WikiText-2 and Penn Treebank; passkeys hidden in long prompts;
time to the first token and per token; errors beside block-sparse attention at equal exact pairs and at equal time. The
constants of the method were chosen on the first 8,192 tokens of WikiText-2's test split, which is not used here: its
validation split and the test split of Penn Treebank are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

import hrf
from benchmarks import smollm
from benchmarks.summarised_tables import BLOCK_SPARSE, peer_rows
from hrf.atomic_write import folder, write
from hrf.integrations.transformers import SummarisedCache, check_decoder
from hrf.report import png, table

__all__ = ["PARTS", "main"]

TEXTS = {"wikitext2": "valid", "ptb": "test"}
LENGTHS, PASSAGES = (2048, 4096, 8192), 4
DEPTHS, KEYS, PROMPT = 10, 2, 8192
TIMED, NEW_TOKENS = (2048, 4096, 8192), 32
BLOCK, STRIDE = 64, 8  # of block-sparse attention
SHARES = (
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
    0.99,
    0.995,
)  # of the mass that blocks are chosen to hold, as estimated
TOLERANCES = (0.25, 0.5, 1.0, 2.0, 4.0)
NAMES = ("sdpa", "hrf-summarised")  # of attention, exact first
THETA = 1e5  # of the model's rotary embeddings


def steps(items: Sequence[Any], what: str) -> Any:
    return track(items, description=what, console=Console(stderr=True), transient=True)


def measure_perplexity() -> list[dict[str, Any]]:
    """Compare both attentions on passages of each text and length."""
    tokenizer, model = smollm.load()
    found = []
    for text, length in steps([(text, n) for text in TEXTS for n in LENGTHS], "perplexity"):
        reports = [
            check_decoder(model, ids)
            for ids in smollm.passages(tokenizer, text, TEXTS[text], PASSAGES, length)
        ]
        losses = [[math.log(u) for u in (r.perplexity, r.exact_perplexity)] for r in reports]
        ours, exact = (math.exp(sum(u) / len(reports)) for u in zip(*losses, strict=True))
        errors = torch.stack([r.errors for r in reports])
        found.append(
            {
                "text": text,
                "tokens": length,
                "passages": len(reports),
                "perplexity": ours,
                "exact_perplexity": exact,
                "largest_change": max((r.change for r in reports), key=abs),
                "kl": sum(r.kl for r in reports) / len(reports),
                "same_top": sum(r.same_top for r in reports) / len(reports),
                "median_error": float(errors.median()),
                "largest_error": float(errors.max()),
                "exact_share": float(torch.stack([r.exact_shares for r in reports]).mean()),
                "speed": sum(r.exact_seconds for r in reports) / sum(r.seconds for r in reports),
            }
        )
    return found


def show_perplexity(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the results of `measure_perplexity`."""
    header = [
        "text",
        "tokens",
        "exact",
        "summarised",
        "change",
        "worst",
        "KL",
        "same top",
        "pairs exact",
        "model faster",
    ]
    rows = [
        [
            *(
                row["text"],
                f"{row['tokens']:,}",
                f"{row['exact_perplexity']:.3f}",
                f"{row['perplexity']:.3f}",
            ),
            *(f"{row['perplexity'] / row['exact_perplexity'] - 1:+.2%}", f"{row['largest_change']:+.2%}"),
            *(
                f"{row['kl']:.4f}",
                f"{row['same_top']:.1%}",
                f"{row['exact_share']:.1%}",
                f"{row['speed']:.2f}",
            ),
        ]
        for row in found
    ]
    console.print(table(header, rows, title=f"Perplexity, {PASSAGES} passages each, nothing trained"))


def prompt_with_key(tokenizer: Any, filler: Tensor, depth: float, key: str) -> Tensor:
    """Return a prompt of `PROMPT` tokens with a passkey at a depth between 0 and 1."""
    start = tokenizer("There is an important number hidden in this text. Remember it.\n\n")["input_ids"]
    needle = tokenizer(f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n")["input_ids"]
    end = tokenizer("\n\nWhat is the pass key? The pass key is")["input_ids"]
    room = PROMPT - len(start) - len(needle) - len(end)
    cut = int(depth * room)
    words = filler[0, :room].tolist()
    return torch.tensor([[*start, *words[:cut], *needle, *words[cut:], *end]])


@torch.inference_mode()
def measure_passkeys() -> list[dict[str, Any]]:
    """Hide passkeys at ten depths, one per prompt, and let both attentions answer."""
    tokenizer, model = smollm.load()
    filler = smollm.passages(tokenizer, "wikitext2", "valid", 1, PROMPT)[0]
    generator, found = torch.Generator().manual_seed(0), []
    for i in steps([*range(DEPTHS)] * KEYS, "passkeys"):
        key = str(int(torch.randint(10_000, 100_000, (1,), generator=generator)))
        prompt = prompt_with_key(tokenizer, filler, i / (DEPTHS - 1), key)
        row: dict[str, Any] = {"depth": i / (DEPTHS - 1), "key": key}
        for name in NAMES:
            model.set_attn_implementation(name)
            cache = SummarisedCache(model) if name != "sdpa" else None
            options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
            answer = model.generate(prompt, past_key_values=cache, **options)[0, prompt.shape[1] :]
            row[name] = key in tokenizer.decode(answer)
        found.append(row)
    return found


def show_passkeys(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the results of `measure_passkeys`."""
    rows = [[f"{row['depth']:.0%}", *("found" if row[name] else "missed" for name in NAMES)] for row in found]
    console.print(table(["depth", "exact", "summarised"], rows, title=f"Passkeys in {PROMPT:,} tokens"))


@torch.inference_mode()
def measure_times() -> list[dict[str, Any]]:
    """Measure the time to the first token, and per token after it, both attentions in turns."""
    tokenizer, model = smollm.load()
    found = []
    for length in steps(TIMED, "times"):
        ids = smollm.passages(tokenizer, "wikitext2", "valid", 1, length + NEW_TOKENS + 1)[0]
        times: dict[str, list[list[float]]] = {name: [] for name in NAMES}
        memory: dict[str, int] = {}
        for _ in range(3):
            for name, own in times.items():
                model.set_attn_implementation(name)
                cache = SummarisedCache(model) if name != "sdpa" else None
                start = time.perf_counter()
                output = model(ids[:, :length], past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, first = output.past_key_values, time.perf_counter() - start
                model(
                    ids[:, length : length + 1], past_key_values=cache
                )  # computes the blocks that steps read
                start = time.perf_counter()
                for i in range(length + 1, length + 1 + NEW_TOKENS):
                    model(ids[:, i : i + 1], past_key_values=cache)
                own.append([first, (time.perf_counter() - start) / NEW_TOKENS])
                if isinstance(cache, SummarisedCache):
                    memory = cache.nbytes()
        row: dict[str, Any] = {"tokens": length, "memory": memory, "threads": torch.get_num_threads()}
        for name, own in times.items():
            first, each = (sorted(u)[1] for u in zip(*own, strict=True))
            row |= {f"{name}, first": first, f"{name}, each": each}
        found.append(row)
    return found


def show_times(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the results of `measure_times`."""
    rows = []
    for row in found:
        times = [f"{row[f'{name}, first']:.2f}" for name in NAMES] + [
            f"{1e3 * row[f'{name}, each']:.0f}" for name in NAMES
        ]
        rows.append(
            [f"{row['tokens']:,}", *times, *(f"{size / 2**20:.0f}" for size in row["memory"].values())]
        )
    header = [
        "prompt",
        "first token, s: exact",
        "summarised",
        "per token, ms: exact",
        "summarised",
        *(f"MiB: {k}" for k in found[0]["memory"]),
    ]
    console.print(table(header, rows, title=f"Generation, {found[0]['threads']} thread(s)"))


def block_scores(q: Tensor, k: Tensor, kind: str) -> Tensor:
    """Estimate the share of mass of each block of 64 × 64 pairs: ``(H, L/64, L/64)``.

    "pooled" multiplies mean queries and mean keys of blocks, as in SpargeAttn; "antidiagonal" sums logits along
    antidiagonals of stride 8, as in XAttention; "oracle" knows the mass.
    """
    length = q.shape[1]
    blocks = length // BLOCK
    if kind == "pooled":
        logits = q.unflatten(1, (blocks, BLOCK)).mean(2) @ k.unflatten(1, (blocks, BLOCK)).mean(2).mT
        later = torch.ones(blocks, blocks, dtype=torch.bool).triu(1)
        return logits.masked_fill(later, -torch.inf).softmax(-1)
    if kind == "antidiagonal":
        rows = torch.cat([q[:, STRIDE - 1 - i :: STRIDE] for i in range(STRIDE)], -1)
        columns = torch.cat([k[:, i::STRIDE] for i in range(STRIDE)], -1)
        logits = rows @ columns.mT / STRIDE
        weights = logits.masked_fill(
            torch.ones_like(logits[0], dtype=torch.bool).triu(1), -torch.inf
        ).softmax(-1)
        return weights.unflatten(2, (blocks, -1)).sum(-1).unflatten(1, (blocks, -1)).mean(2)
    weights = (
        (q @ k.mT).masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    )
    return weights.unflatten(2, (blocks, BLOCK)).sum(-1).unflatten(1, (blocks, BLOCK)).mean(2)


def block_sparse(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, share: float) -> tuple[Tensor, float]:
    """Attend to the blocks that hold a share of the estimated mass, the first and the diagonal always."""
    order = scores.argsort(-1, descending=True)
    sums = scores.gather(-1, order).cumsum(-1)
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(
        -1, order, sums - scores.gather(-1, order) < share
    )
    kept[..., 0] = True
    kept |= torch.eye(kept.shape[-1], dtype=torch.bool)
    seen = kept.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2).tril()
    output = (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return output, float(seen.sum() / (len(q) * q.shape[1] * (q.shape[1] + 1) / 2))


@torch.inference_mode()
def measure_peers() -> dict[str, Any]:
    """Compare errors on the queries and keys of five layers, 4,096 tokens."""
    tokenizer, model = smollm.load()
    layers = smollm.capture(model, smollm.passages(tokenizer, "ptb", "test", 1, 4096)[0])
    found: dict[str, list[list[float]]] = {}
    for query, key, value in steps(list(layers.values()), "peers"):
        q, k, v = query[0] / query.shape[-1] ** 0.5, *(u[0].repeat_interleave(3, 0) for u in (key, value))
        exact = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=1.0)[0]

        def error(output: Tensor, exact: Tensor = exact) -> float:
            return float(((output - exact).norm(dim=(-2, -1)) / exact.norm(dim=(-2, -1))).median())

        for tolerance in TOLERANCES:
            report = hrf.SummaryReport()
            method = hrf.SummarisedAttention(tolerance=tolerance, rotary=THETA, report=report)
            ours = hrf.attention(query, key, value, method, is_causal=True)[0]
            found.setdefault(f"summarised {tolerance}", []).append([report.exact_share, error(ours)])
        for kind in ("pooled", "antidiagonal", "oracle"):
            scores = block_scores(q, k, kind)
            for share in SHARES:
                output, pairs = block_sparse(q, k, v, scores, share)
                found.setdefault(f"{kind} {share}", []).append([pairs, error(output)])
    rows = {name: [sum(u) / len(own) for u in zip(*own, strict=True)] for name, own in found.items()}
    query, key, value = layers[14]
    repeated = [u.repeat_interleave(3, 1).contiguous() for u in (key, value)]
    calls: list[Callable[[], Tensor]] = [
        lambda: F.scaled_dot_product_attention(query, *repeated, is_causal=True),
        lambda: hrf.attention(query, key, value, hrf.SummarisedAttention(rotary=THETA), is_causal=True),
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(7):
        for call, own in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return {"rows": rows, "share_of_exact_time": sorted(seconds[1])[3] / sorted(seconds[0])[3]}


def show_peers(console: Console, found: dict[str, Any]) -> None:
    """Print the results of `measure_peers`."""
    header, *lines = peer_rows({"peers": found})
    console.print(
        table(header, lines, title="Median error of heads, 4,096 tokens; blocks are chosen for free")
    )


def draw(peers: dict[str, Any]) -> Any:
    """Draw errors over pairs computed exactly; return a matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    names = {"summarised": "summarised attention"} | BLOCK_SPARSE
    for (kind, name), marker in zip(names.items(), "osdv", strict=True):
        points = sorted(own for key, own in peers["rows"].items() if key.startswith(kind))
        shares, errors = zip(*points, strict=True)
        axes.plot([100 * share for share in shares], errors, marker=marker, markersize=4, label=name)
    share, error = peers["rows"]["summarised 1.0"]
    axes.annotate("default", (100 * share, error), (6, 4), textcoords="offset points", fontsize=9)
    axes.set(yscale="log", xlabel="pairs computed exactly, %", ylabel="error of a head, median")
    axes.set_title("SmolLM2-135M, 4,096 tokens", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return figure


# Name: what measures, and what prints.
PARTS: dict[str, tuple[Callable[[], Any], Callable[[Console, Any], None]]] = {
    "perplexity": (measure_perplexity, show_perplexity),
    "passkeys": (measure_passkeys, show_passkeys),
    "times": (measure_times, show_times),
    "peers": (measure_peers, show_peers),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 2 if data or a library is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.decoder",
        description="SmolLM2-135M with summarised attention in all layers, beside exact attention.",
        epilog="Texts are read from $HRF_DATA/wikitext2 and $HRF_DATA/ptb, by default below ../shared/data.",
    )
    parser.add_argument("part", nargs="*", default=[*PARTS], help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for decoder.json (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    if unknown := set(args.part) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 150  # a pipe or a file has room
    path = args.out / "decoder.json"
    try:
        for part in args.part:
            measure, show = PARTS[part]
            found = measure()
            show(console, found)
            known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            folder(path.parent)
            write(path, (json.dumps(known | {part: found}, indent=1) + "\n").encode())
            if part == "peers":
                write(args.out / "long_prompts.png", png(draw(found), dpi=130))
    except ModuleNotFoundError as error:
        print(f"this example needs {error.name}: {smollm.INSTALL}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
