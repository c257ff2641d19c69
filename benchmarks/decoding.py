"""Decoding through Transformers' cache, in milliseconds per token: ``python -m benchmarks.decoding``.

A small Llama (4 layers, 4 heads, d = 64) reads a prompt, then decodes token by token, in turns with
``scaled_dot_product_attention`` so that other load hits both alike. The ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from rich.console import Console

from hrf.integrations.transformers import register
from hrf.report import table

LENGTHS = (128, 512, 2048, 8192)
SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
}
EXACT, OURS = "sdpa", "hrf"
TURNS = 20


def model(implementation: str, longest: int) -> Any:
    """Build the model with the same weights on every call."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_attention_heads=4, max_position_embeddings=longest)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


@torch.no_grad()
def stepper(decoder: Any, length: int) -> Callable[[], float]:
    """Read a prompt, and return a function that decodes one token and returns the seconds it took."""
    cache = transformers.DynamicCache()
    decoder(torch.randint(SIZES["vocab_size"], (1, length)), past_key_values=cache, logits_to_keep=1)
    token = torch.zeros(1, 1, dtype=torch.long)

    @torch.no_grad()
    def step() -> float:
        start = perf_counter()
        decoder(token, past_key_values=cache)
        return perf_counter() - start

    step()
    return step


def measure(length: int, turns: int) -> dict[str, float]:
    """Return the medians of the times of a token, and of their ratio."""
    steps = {name: stepper(model(name, 2 * length), length) for name in (EXACT, OURS)}
    rounds = [{name: step() for name, step in steps.items()} for _ in range(turns)]
    found = {name: median(row[name] for row in rounds) for name in steps}
    return found | {"ratio": median(row[OURS] / row[EXACT] for row in rounds)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decoding",
        description="Time per token of decoding, positive features against exact.",
    )
    parser.add_argument("length", nargs="*", type=int, default=[*LENGTHS], help="tokens in the cache")
    parser.add_argument("--turns", type=int, default=TURNS, help="tokens to decode (default: %(default)s)")
    args = parser.parse_args(argv)
    register(OURS)
    rows = []
    for length in args.length:
        found = measure(length, args.turns)
        rows.append(
            [f"{length:,}", *(f"{found[n] * 1e3:.1f}" for n in (OURS, EXACT)), f"{found['ratio']:.2f}"]
        )
    Console().print(
        table(["tokens in the cache", "hrf, ms", "sdpa, ms", "ratio"], rows, title="Decoding one token")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
