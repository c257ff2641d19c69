"""Picture of summarised attention in one head of MiniLM-L6: ``python -m benchmarks.summary_figure``.

Left: keys in the plane where logits vary most within a group, by cluster; one group's exact keys are ringed. Middle:
weights of the mean query of every group, keys sorted by cluster. Right: which of them are exact. Written to
``docs/figures/summarised.png``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import minilm
from hrf import SummarisedAttention
from hrf._attention.summarised.plan import Heads, Plan, clusters_of, groups_of, root_of_metric
from hrf._attention.summarised.read import make_plan
from hrf.report import folder, png, write

PATH = Path("docs/figures/summarised.png")
LAYER, HEAD, GROUP = 3, 5, 20
TOKENS = minilm.MAX_TOKENS
FAINTEST = 1e-4  # share of the mass, in colours


def one_head(layer: int, head: int) -> Heads:
    """Return one head of a passage of WikiText-2's test text."""
    (text,) = minilm.passages(minilm.read_text("test"), 1, TOKENS * minilm.CHARACTERS)
    inputs = minilm.inputs([text], TOKENS)[layer]
    real = torch.ones(1, TOKENS, dtype=torch.bool)
    return Heads(*(u[:, head] for u in inputs), real, real)


def plane(heads: Heads, metric: Tensor) -> Tensor:
    """Project keys on the two directions that vary most in the metric, ``(L, 2)``."""
    keys = (heads.y @ root_of_metric(metric))[0]
    centred = keys - keys.mean(0)
    return centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T


def draw(heads: Heads, plan: Plan, group: int) -> Any:
    """Draw the three panels; return a matplotlib figure."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    groups = groups_of(heads, plan.groups)
    clusters = clusters_of(heads, plan.clusters, groups.metric)
    filled = plan.clusters.filled[0].flatten()
    tokens = plan.clusters.tokens[0].flatten()[filled]
    exact = plan.is_exact(slice(None))[0].flatten(1)[:, filled]  # (G, L), keys by cluster
    weights = (groups.mean[0] @ clusters.keys[0].flatten(0, 1)[filled].T).softmax(-1)
    n_clusters, width = plan.clusters.tokens.shape[1:]
    label = torch.arange(n_clusters).repeat_interleave(width)[filled]
    points = plane(heads, groups.metric)[tokens]

    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.scatter(*points.T, c=label, cmap="turbo", s=10, linewidths=0)
    left.scatter(*points[exact[group]].T, s=46, facecolors="none", edgecolors="black", linewidths=0.9)
    left.set(xticks=[], yticks=[], xlabel="keys, where logits vary most within a group", ylabel="")
    left.set_title(f"{n_clusters} clusters; exact keys of group {group + 1}", loc="left", fontsize=10)
    norm = LogNorm(FAINTEST, float(weights.max()))
    drawn = middle.imshow(weights.clamp(min=FAINTEST), norm=norm, cmap="viridis", aspect="auto")
    middle.axhline(group, color="white", linewidth=0.6, linestyle=":")
    middle.set_title("weights of the groups' mean queries", loc="left", fontsize=10)
    figure.colorbar(drawn, ax=middle, shrink=0.8)
    right.imshow(exact, cmap="Greys", aspect="auto", interpolation="nearest")
    share = float(exact.double().mean())
    right.set_title(f"exact pairs: {share:.1%}; summaries for all others", loc="left", fontsize=10)
    for axes in (middle, right):
        axes.set(xlabel="keys, by cluster", ylabel="groups of queries")
    return figure


def main() -> int:
    """Draw and write the picture; return 2 if the text is missing."""
    try:
        heads = one_head(LAYER, HEAD)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    sizes = SummarisedAttention().sizes(TOKENS, TOKENS)
    figure = draw(heads, make_plan(heads, *sizes, heads.x.new_ones(1)), GROUP)
    write(folder(PATH.parent) / PATH.name, png(figure, dpi=130))
    return 0


if __name__ == "__main__":
    sys.exit(main())
