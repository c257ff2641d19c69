"""Maps against the attention of a trained Transformer: ``python -m benchmarks.attention_quality``.

Queries, keys and values are those of MiniLM-L6 (6 layers × 12 heads, d = 32) on a passage of WikiText-2's
test text (``minilm.py``). Maps that are fitted have seen other text only, passages of the training part;
clustered maps of residuals then move their key centres to the means of the sequence at hand. The error of a
head is

    ‖Ô − O‖_F / ‖O‖_F,   O = softmax(QKᵀ)V,   Ô = diag(1/K̂1) K̂V,

with K̂ = ``estimate(Q, K)``, averaged over redraws of ω. Tables show medians over heads. A denominator K̂1 that
is below a thousandth of Σ|K̂| of its row, negative ones included, is set to that: otherwise a row whose signed
estimates cancel would decide everything. The share of such rows is printed. Where it is large, the error is
about inverse to the floor: read it as "useless" (with the largest floor, Σ|K̂| itself, it is still above 1).

FLOPs a token of the whole attention, 2 for a multiply-add, with values of width d_v and S keys:

=================  ===================================================================================
plain, D features  2 flops() + 4 D (d_v + 1): map a query and a key, add the key to the state, read it
clustered, w       2 flops() + d + 2 (n_q + n_k) w (d_v + 1): a key is added to the n_q blocks of its
features a block   cluster, a query reads n_k blocks; d is for the means of the keys
exact pairs        less the blocks they replace, plus share · S (2d + 2d_v)
exact attention    S (2d + 2d_v)
uniform            d_v
=================  ===================================================================================

Only what is exact grows with S; the last column is the length from which on a map needs fewer operations than
exact attention. At a few hundred tokens many of them need more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

INSTALL = "pip install 'hybrid-random-features[bench]'"

try:
    import torch
    from rich import box
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from torch import Generator, Tensor

    import hrf
    from benchmarks import minilm, report
except ModuleNotFoundError as error:
    sys.exit(f"this benchmark needs {error.name}: {INSTALL}")

__all__ = ["Outcome", "Setting", "attention_flops", "exact_flops", "output_errors", "verdict"]

THREADS = 2
WIDTH = 256  # features of a plain map, and of a block of a clustered one
DRAWS = 3  # of ω, for maps that are quickly evaluated
FIT_PASSAGES = 12
EXACT_SHARE = 0.1
FLOOR = 1e-3  # least denominator of a row, as a share of the sum of its magnitudes
FIT_SECONDS = 2.0  # aimed at for 12 heads × 512 tokens, 16 × 16 clusters

BASES = ("paper", "moments", "shifted", "separable", "shrunk")

POSITIVE = "positive (FAVOR+)"
SHIFTED, SEPARABLE = "clustered 16×16, shifted", "clustered 64×64, separable"


class Setting(NamedTuple):
    """One layer: what maps are fitted to, and what they are measured on.

    Attributes:
        fit: queries and keys ``(N, H, L, d)`` of the passages to fit to.
        test: queries, keys and values ``(H, L, d)``.
        generator: the source of ω.
    """

    fit: minilm.Attention
    test: minilm.Attention
    generator: Generator


@dataclass(frozen=True)
class Outcome:
    """What was measured of a method.

    Attributes:
        draws: of ω that were averaged; 0 for what is not random.
        width: features of a token; of a block, for clustered maps.
        errors: of every measured head, by layer.
        floored: the share of rows with a denominator below the floor.
        flops: a token of the whole attention.
        exact: the share of pairs of tokens that are computed exactly.
    """

    draws: int
    width: int = 0
    errors: dict[int, list[float]] = field(default_factory=dict)
    floored: float = 0.0
    flops: float = 0.0
    exact: float = 0.0

    def layer(self, layer: int) -> float:
        """The median over the heads of a layer."""
        return median(self.errors[layer])

    @property
    def overall(self) -> float:
        """The median over all heads."""
        return median(error for errors in self.errors.values() for error in errors)

    @property
    def n_heads(self) -> int:
        """How many heads of a layer were measured."""
        return len(next(iter(self.errors.values())))


def merged(parts: Sequence[tuple[int, Outcome]]) -> Outcome:
    """One outcome of a method from those of its layers, and of heads that were measured one by one."""
    errors: dict[int, list[float]] = {}
    for layer, part in parts:
        errors.setdefault(layer, []).extend(*part.errors.values())
    outcomes = [part for _, part in parts]
    means = (
        sum(getattr(o, name) for o in outcomes) / len(outcomes) for name in ("floored", "flops", "exact")
    )
    return Outcome(outcomes[0].draws, outcomes[0].width, errors, *means)


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Exact attention: softmax(QKᵀ)V."""
    return (queries @ keys.mT).softmax(-1) @ values


def output_errors(kernel: Tensor, values: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """The error of the output of each head, and the share of rows whose denominator was below the floor.

    Args:
        kernel: estimates K̂ ``(..., L, S)``; they may be negative.
        values: V ``(..., S, d_v)``.
        exact: O ``(..., L, d_v)``.
    """
    denominator, floor = kernel.sum(-1, keepdim=True), FLOOR * kernel.abs().sum(-1, keepdim=True)
    output = kernel @ values / denominator.maximum(floor)
    errors = torch.linalg.matrix_norm(output - exact) / torch.linalg.matrix_norm(exact)
    return errors, (denominator < floor).double().mean((-2, -1))


def exact_flops(dim: int, value_dim: int, n_keys: int) -> float:
    """Operations a token of exact attention: its products with all keys, and the sum of their values."""
    return float(n_keys * (2 * dim + 2 * value_dim))


def attention_flops(phi: hrf.FeatureMap, value_dim: int, n_keys: int, exact_share: float = 0.0) -> float:
    """Operations a token of attention with a map, as in the table at the top of this file.

    Args:
        phi: the map.
        value_dim: d_v.
        n_keys: S; it matters for exact pairs only.
        exact_share: the share of pairs of tokens that are computed exactly.
    """
    columns = value_dim + 1  # the values, and a one for the denominator
    if not isinstance(phi, hrf.ClusteredHybrid):
        return 2.0 * phi.flops() + 4 * phi.feature_dim * columns
    by_features = 1.0 if phi.exact is None else 1 - float(phi.exact.double().mean())
    blocks = (phi.n_q + phi.n_k) * by_features
    state = 2 * blocks * block_width(phi) * columns
    return 2 * phi.flops() + phi.dim + state + exact_share * exact_flops(phi.dim, value_dim, n_keys)


def block_width(phi: hrf.FeatureMap) -> int:
    """Features of a map, or of one block of a clustered one."""
    return phi.feature_dim // (phi.n_q * phi.n_k) if isinstance(phi, hrf.ClusteredHybrid) else phi.feature_dim


# What is compared. A family makes maps for the heads of a layer; clustered maps of residuals share their
# clusters, their A and their ω, so that the base alone makes the difference.


class Candidate(NamedTuple):
    """A map for all heads of a layer, or for a slice of them, and how many draws of ω to average."""

    name: str
    map: hrf.FeatureMap
    draws: int = DRAWS
    heads: slice = slice(None)


def plain_maps(setting: Setting) -> Iterator[Candidate]:
    """Maps of the same width without clusters."""
    queries, keys, _ = setting.fit
    heads, dim = queries.shape[-3], queries.shape[-1]
    common: dict[str, Any] = {"heads": heads, "generator": setting.generator}
    half = WIDTH // 2  # ω and −ω, or cosine and sine
    yield Candidate("trigonometric", hrf.Trigonometric(dim, n_projections=half, **common))
    yield Candidate(POSITIVE, hrf.Positive(dim, n_projections=half, **common))
    yield Candidate("FAVOR++", hrf.OptimalPositive(dim, n_projections=WIDTH, **common).fit(queries, keys))
    yield Candidate("FAVOR#", hrf.DenseExponential(dim, n_projections=WIDTH, **common).fit(queries, keys))
    angular = hrf.AngularHybrid(dim, n_projections=WIDTH // 32, n_coefficient_projections=7, **common)
    yield Candidate("angular hybrid", angular)
    fit = partial(hrf.Exponential.fit, queries, keys, n_projections=half, **common)
    yield Candidate("centred", fit(matrix=None))
    yield Candidate("fitted (centred, full A)", fit(matrix="real-full"))


def residual_maps(setting: Setting, n: int) -> Iterator[Candidate]:
    """Clustered maps whose features are those of the residuals, without and with exact pairs."""
    queries, keys, _ = setting.fit
    fitted = hrf.ClusteredHybrid.fit(
        queries,
        keys,
        n_clusters=(n, n),
        n_projections=WIDTH // 2,
        base="shrunk",
        matrix="real-full",
        exact_share=EXACT_SHARE,
        recenter=True,
        heads=queries.shape[-3],
        generator=setting.generator,
    )
    for exact in (None, fitted.exact):
        for base in ("shifted", "separable", "shrunk"):
            phi = hrf.ClusteredHybrid(
                fitted.query_centers,
                fitted.key_centers,
                base=base,
                feature_map=None if base == "separable" else fitted.feature_map,
                shrinkage=fitted.shrinkage if base == "shrunk" else None,
                exact=exact,
                recenter=True,
            )
            name = f"clustered {n}×{n}, {base}" + ("" if exact is None else " + exact pairs")
            yield Candidate(name, phi, draws=0 if base == "separable" else DRAWS)


def pair_maps(
    setting: Setting, n: int, kinds: Sequence[str], heads: Sequence[int] | None = None
) -> Iterator[Candidate]:
    """Clustered maps with an A for each pair of clusters. The centres decide nothing else, so they stay.

    Args:
        setting: the layer.
        n: clusters of queries, and of keys.
        kinds: of the diagonal A: ``real``, or ``complex``, whose estimates have signs.
        heads: the only ones to measure, one after the other, where all at once are too many.
    """
    queries, keys, _ = setting.fit
    n_heads = queries.shape[-3]
    for base in ("paper", "moments"):
        for kind in kinds:
            signs = 4 if kind == "complex" else 2  # ω and −ω, and each as cosine and sine
            for part in [slice(None)] if heads is None else [slice(head, head + 1) for head in heads]:
                phi = hrf.ClusteredHybrid.fit(
                    queries[..., part, :, :],
                    keys[..., part, :, :],
                    n_clusters=(n, n),
                    n_projections=WIDTH // signs,
                    base=base,
                    matrix=f"{kind}-diagonal",
                    heads=n_heads if heads is None else 1,
                    generator=setting.generator,
                )
                yield Candidate(f"clustered {n}×{n}, {base}, {kind} A", phi, draws=1, heads=part)


Family = Callable[[Setting], Iterator[Candidate]]

# 4,096 maps a head take seconds each, so two heads of a layer stand for all.
FAMILIES: tuple[Family, ...] = (
    plain_maps,
    partial(pair_maps, n=16, kinds=("complex", "real")),
    partial(residual_maps, n=16),
    partial(pair_maps, n=64, kinds=("real",), heads=(0, 6)),
    partial(residual_maps, n=64),
)


def measure(candidate: Candidate, setting: Setting) -> Outcome:
    """The errors of a map, by head, in layer 0 of the outcome."""
    queries, keys, values = (u[candidate.heads] for u in setting.test)
    phi, exact = candidate.map, attention(queries, keys, values)
    errors, floored = [], []
    for draw in range(max(1, candidate.draws)):
        if draw:
            phi.redraw_(setting.generator)
        error, share = output_errors(phi.estimate(queries, keys), values, exact)
        errors.append(error)
        floored.append(share)
    share = phi.exact_share(queries, keys) if isinstance(phi, hrf.ClusteredHybrid) else 0.0
    return Outcome(
        candidate.draws,
        block_width(phi),
        {0: torch.stack(errors).mean(0).tolist()},
        float(torch.stack(floored).mean()),
        attention_flops(phi, values.shape[-1], keys.shape[-2], share),
        share,
    )


def uniform(setting: Setting) -> Outcome:
    """Attention that ignores queries and keys."""
    queries, keys, values = setting.test
    weights = torch.ones(*queries.shape[:-1], keys.shape[-2], dtype=values.dtype)
    errors, _ = output_errors(weights, values, attention(*setting.test))
    return Outcome(0, errors={0: errors.tolist()}, flops=values.shape[-1])


def verdict(outcomes: dict[str, Outcome], name: str) -> tuple[bool, str]:
    """Whether a method has at most half the error of positive features in every layer, and a sentence."""
    mine, positive = outcomes[name], outcomes[POSITIVE]
    ratios = {layer: mine.layer(layer) / positive.layer(layer) for layer in mine.errors}
    worst = max(ratios, key=lambda layer: ratios[layer])
    met = sum(ratio <= 0.5 for ratio in ratios.values())
    where = "every layer" if met == len(ratios) else f"{met} of {len(ratios)} layers"
    return met == len(ratios), (
        f"{name} has at most half the error of positive features in {where}; "
        f"the largest share is {ratios[worst]:.2f}, in layer {worst}."
    )


def fit_seconds(layer: minilm.Attention, repeats: int = 3) -> dict[str, float]:
    """Median time to fit 16 × 16 clusters to one passage, all heads of a layer, by base."""
    queries, keys = layer.queries[0], layer.keys[0]
    seconds = {}
    for base in BASES:
        times = []
        for _ in range(repeats):
            start = perf_counter()
            hrf.ClusteredHybrid.fit(
                queries, keys, n_clusters=(16, 16), n_projections=WIDTH // 2, base=base, heads=len(queries)
            )
            times.append(perf_counter() - start)
        seconds[base] = median(times)
    return seconds


def number(value: float) -> str:
    """Two digits behind the point, none from 10 on."""
    return f"{value:.2f}" if value < 9.995 else f"{value:,.0f}"


def pays_from(outcome: Outcome, per_key: float, n_keys: int) -> float:
    """The length from which a method needs fewer operations than exact attention.

    Args:
        outcome: of the method, measured with ``n_keys`` keys.
        per_key: operations a token of exact attention for each key.
        n_keys: S. Exact pairs grow with it as exact attention does, so that only the rest of them is spared.
    """
    fixed = outcome.flops - outcome.exact * per_key * n_keys
    return fixed / (per_key * (1 - outcome.exact))


def show(
    console: Console, outcomes: dict[str, Outcome], layers: Sequence[int], per_key: float, n_keys: int
) -> None:
    """Print the errors and the costs; the last arguments are those of `pays_from`."""
    table = Table(
        title="Relative error of the attention output, medians over heads",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    headings = ["map", "width", "draws", *(f"L{layer}" for layer in layers), "all", "floored", "exact"]
    for i, heading in enumerate([*headings, "FLOPs/token", "pays from"]):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    n_heads = max(outcome.n_heads for outcome in outcomes.values())
    for name, o in outcomes.items():
        few = "" if o.n_heads == n_heads else f" ({o.n_heads} of {n_heads} heads)"
        table.add_row(
            name + few,
            str(o.width or ""),
            str(o.draws or ""),
            *(number(o.layer(layer)) for layer in layers),
            number(o.overall),
            f"{o.floored:.1%}" if o.floored else "",
            f"{o.exact:.0%}" if o.exact else "",
            f"{o.flops:,.0f}",
            f"{pays_from(o, per_key, n_keys):,.0f}",
        )
    blank = [""] * (len(headings) - 1)
    table.add_row("exact attention", *blank, f"{per_key * n_keys:,.0f}", "")
    console.print(table)
    console.print(
        "Width: features, of a block for clustered maps. Floored: rows whose denominator was below "
        f"{FLOOR:g} of the sum\nof magnitudes. Exact: pairs of tokens. Pays from: the length at which exact "
        "attention needs as many FLOPs.\n",
        style="dim",
        highlight=False,
    )


def measure_layers(
    captured: Sequence[minilm.Attention], layers: Sequence[int], console: Console
) -> dict[str, Outcome]:
    """All methods in some layers, counted from 1: measured on the first passage, fitted to the others."""
    parts: dict[str, list[tuple[int, Outcome]]] = {}
    with Progress(console=console, transient=True) as progress, torch.inference_mode():
        task = progress.add_task("", total=len(layers) * len(FAMILIES))
        for layer in layers:
            here = captured[layer - 1]
            test, fit = (minilm.Attention(*(u[part] for u in here)) for part in (0, slice(1, None)))
            setting = Setting(fit, test, Generator().manual_seed(layer))
            parts.setdefault("uniform", []).append((layer, uniform(setting)))
            for family in FAMILIES:
                progress.update(task, description=f"layer {layer}")
                for candidate in family(setting):
                    progress.update(task, description=f"layer {layer}: {candidate.name}")
                    parts.setdefault(candidate.name, []).append((layer, measure(candidate, setting)))
                progress.advance(task)
    return {name: merged(found) for name, found in parts.items()}


def as_dict(outcome: Outcome, per_key: float, n_keys: int) -> dict[str, Any]:
    """An outcome for JSON."""
    return {
        "width": outcome.width,
        "draws": outcome.draws,
        "errors": outcome.errors,
        "medians": {layer: outcome.layer(layer) for layer in outcome.errors},
        "median": outcome.overall,
        "floored_rows": outcome.floored,
        "exact_share": outcome.exact,
        "flops_per_token": outcome.flops,
        "pays_from": pays_from(outcome, per_key, n_keys),
    }


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention_quality",
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
        "--out",
        type=Path,
        default=Path("results"),
        help="folder for the JSON (default: results)",
    )
    args = parser.parse_args(argv)
    if not 64 <= args.tokens <= minilm.MAX_TOKENS:
        parser.error(f"--tokens is {args.tokens}; expected between 64 and {minilm.MAX_TOKENS}")
    args.layers = sorted(set(args.layers))
    return args


def capture(tokens: int) -> list[minilm.Attention]:
    """What the attention of every layer gets: a passage of test text, then those to fit to."""
    length = tokens * minilm.CHARACTERS
    parts = (("test", 1), ("train", FIT_PASSAGES))
    texts = [text for split, n in parts for text in minilm.passages(minilm.read_text(split), n, length)]
    return minilm.inputs(texts, tokens)


def run(layers: Sequence[int], tokens: int, out: Path) -> None:
    """Measure, print and write ``attention_quality.json``."""
    torch.set_num_threads(min(THREADS, os.cpu_count() or 1))
    start = perf_counter()
    captured = capture(tokens)
    console = Console()
    if not console.is_terminal:
        console.width = 150  # a pipe or a file has room
    console.print(
        f"MiniLM-L6, {tokens} tokens of WikiText-2, maps fitted to {FIT_PASSAGES} other passages, float64",
        highlight=False,
    )
    outcomes = measure_layers(captured, layers, Console(stderr=True))
    dim, value_dim = captured[0].queries.shape[-1], captured[0].values.shape[-1]
    per_key = exact_flops(dim, value_dim, 1)
    show(console, outcomes, layers, per_key, tokens)
    verdicts = {name: verdict(outcomes, name) for name in (SHIFTED, SEPARABLE)}
    for met, sentence in verdicts.values():
        console.print(sentence, style="green" if met else "red", highlight=False, soft_wrap=True)
    seconds = fit_seconds(captured[layers[0] - 1])
    shown = ", ".join(f"{base} {time:.2f} s" for base, time in seconds.items())
    slow = [base for base, time in seconds.items() if time > FIT_SECONDS]
    limit = f"{FIT_SECONDS:g} s"
    console.print(
        f"Fitting {captured[0].queries.shape[-3]} heads × {tokens} tokens, d = {dim}, 16×16 clusters: {shown}; "
        + (f"above {limit}: {', '.join(slow)}." if slow else f"all below {limit}."),
        highlight=False,
        soft_wrap=True,
    )
    elapsed = perf_counter() - start
    result = {
        "settings": {"tokens": tokens, "layers": layers, "fit_passages": FIT_PASSAGES, "floor": FLOOR},
        "environment": report.environment(),
        "exact_flops_per_token": per_key * tokens,
        "maps": {name: as_dict(outcome, per_key, tokens) for name, outcome in outcomes.items()},
        "at_most_half_of_positive": {name: met for name, (met, _) in verdicts.items()},
        "fit_seconds": seconds,
        "seconds": elapsed,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / "attention_quality.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"Written to {path} after {elapsed:.0f} s", highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2 if something that is needed is missing."""
    args = arguments(argv)
    try:
        run(args.layers, args.tokens, args.out)
    except ModuleNotFoundError as error:
        print(f"this benchmark needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
