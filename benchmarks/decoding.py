"""Decoding in Transformers, in milliseconds per token: ``python -m benchmarks.decoding``.

A small Llama (4 layers, 4 heads, d = 64) reads a prompt, then decodes token by token: with positive features from a
`LinearCache`, in turns with ``scaled_dot_product_attention`` from a ``DynamicCache``, so that other load hits both
alike. A turn is several tokens: the keys and values of the one evict the state of the other from the processor's cache,
and the median leaves the first token out. Memory is what the caches hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from rich.console import Console

from hrf.integrations.transformers import LinearCache, register
from hrf.report import table

LENGTHS = (128, 512, 2048, 8192, 32768)
SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
}
EXACT, OURS = "sdpa", "hrf"
TURNS, TOKENS = 10, 11  # tokens of a turn


def model(implementation: str, longest: int) -> Any:
    """Build the model with the same weights on every call."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_attention_heads=4, max_position_embeddings=longest)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()


class Decoder:
    """A model after a prompt, which decodes one token per call."""

    @torch.no_grad()
    def __init__(self, implementation: str, length: int) -> None:
        self.model = model(implementation, 2 * length)
        self.cache = LinearCache(self.model) if implementation == OURS else transformers.DynamicCache()
        prompt = torch.randint(SIZES["vocab_size"], (1, length), generator=torch.Generator().manual_seed(1))
        self.model(prompt, past_key_values=self.cache, logits_to_keep=1)
        self.token = torch.zeros(1, 1, dtype=torch.long)

    @torch.no_grad()
    def seconds(self) -> float:
        """Decode the tokens of a turn, and return the median of their times."""
        times = [perf_counter()]
        for _ in range(TOKENS):
            self.model(self.token, past_key_values=self.cache)
            times.append(perf_counter())
        return median(after - before for before, after in pairwise(times))

    def megabytes(self) -> float:
        """Return the size of all tensors in the cache."""
        layers: list[Any] = self.cache.layers
        ours = isinstance(self.cache, LinearCache)
        held = [layer.tensors().values() if ours else (layer.keys, layer.values) for layer in layers]
        return sum(tensor.nbytes for tensors in held for tensor in tensors) / 1e6


def measure(length: int, turns: int) -> dict[str, float]:
    """Return the medians of the times of a token and of their ratio, and the sizes of the caches."""
    decoders = {name: Decoder(name, length) for name in (EXACT, OURS)}
    rounds = [{name: decoder.seconds() for name, decoder in decoders.items()} for _ in range(turns)]
    found = {name: median(row[name] for row in rounds) for name in decoders}
    found |= {f"{name} MB": decoder.megabytes() for name, decoder in decoders.items()}
    return found | {"ratio": median(row[OURS] / row[EXACT] for row in rounds)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decoding",
        description="Time per token of decoding, positive features against exact.",
    )
    parser.add_argument("length", nargs="*", type=int, default=[*LENGTHS], help="tokens in the cache")
    parser.add_argument("--turns", type=int, default=TURNS, help="turns (default: %(default)s)")
    args = parser.parse_args(argv)
    register(OURS)
    rows = []
    for length in args.length:
        found = measure(length, args.turns)
        times = (f"{found[name] * 1e3:.1f}" for name in (OURS, EXACT))
        sizes = (f"{found[f'{name} MB']:.1f}" for name in (OURS, EXACT))
        rows.append([f"{length:,}", *times, f"{found['ratio']:.2f}", *sizes])
    heads = ["tokens in the cache", "hrf, ms", "sdpa, ms", "ratio", "hrf, MB", "sdpa, MB"]
    Console().print(table(heads, rows, title="Decoding one token"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
