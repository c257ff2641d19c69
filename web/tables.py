"""Numbers of the explorer: ``python -m web.tables`` writes docs/explorer/tables.js.

The page draws these numbers and computes none of its own: its sliders stop at the values that are tabulated here, and
nothing is interpolated. Errors are closed forms of `hrf.theory`, by way of the maps; rows of softmax are estimates of
maps; summarised attention is one head of MiniLM-L6 on a passage of WikiText-2, planned and computed by `hrf.attention`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hrf
from benchmarks import minilm
from hrf import kernels
from hrf._attention.summarised.plan import Heads, Plan
from hrf._attention.summarised.read import make_plan
from hrf.report import progress, write

__all__ = [
    "AXES",
    "DIM",
    "FAMILIES",
    "HEAD",
    "ROW",
    "build",
    "errors",
    "flops",
    "main",
    "maps",
    "rows",
    "summarised",
]

OUT = Path(__file__).parents[1] / "docs" / "explorer" / "tables.js"
DIM = 64
# The values at which the sliders of the angle page stop, outermost first.
AXES: dict[str, list[Any]] = {
    "projection": ["iid", "orthogonal"],
    "sigma": [0.25, 0.5, 1.0, 2.0],
    "m": [8, 16, 32, 64, 128, 256],
    "n": [1, 4, 8, 16, 32],
    "r": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0],
    "theta": [0, 1, 2, *range(4, 177, 4), 178, 179, 180],
}
# The axes that matter to a family, in the order of `AXES`.
FAMILIES = {
    "Trigonometric": ["projection", "m", "r", "theta"],
    "Positive": ["projection", "m", "r", "theta"],
    "AngularHybrid": ["projection", "m", "n", "r", "theta"],
    "GaussianHybrid": ["projection", "sigma", "m", "n", "r", "theta"],
}
ROW = {"keys": 24, "dim": 16, "radius": 1.5, "redraws": 48, "m": [8, 32, 128], "n": 8}
HEAD = {
    "tokens": 192,
    "layer": 2,
    "head": 5,
    "tau": [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
    "groups": 16,
    "clusters": 16,
}
BITS = 65535


def make(
    family: str, *, m: int, n: int, sigma: float, r: float, projection: str, dim: int = DIM, seed: int = 0
) -> Any:
    """Build the map of a family; what does not matter to the family is left out."""
    common = {"n_projections": m, "projection": projection, "seed": seed, "dtype": torch.float64}
    if family == "AngularHybrid":
        return hrf.AngularHybrid(dim, n_coefficient_projections=n, **common)
    if family == "GaussianHybrid":
        return hrf.GaussianHybrid(dim, n_coefficient_projections=n, sigma=sigma, radius=r, **common)
    return getattr(hrf, family)(dim, **common)


def code(family: str, *, m: int, n: int, sigma: float, r: float, projection: str, dim: int = DIM) -> str:
    """Return the line of Python that builds the map."""
    more = {
        "AngularHybrid": f", n_coefficient_projections={n}",
        "GaussianHybrid": f", n_coefficient_projections={n}, sigma={sigma:g}, radius={r:g}",
    }.get(family, "")
    own = "" if projection == "orthogonal" else f', projection="{projection}"'
    return f"hrf.{family}({dim}, n_projections={m}{more}{own})"


def pairs(r: float, angles: Sequence[float], dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Return x ``(1, d)`` and y ``(angles, d)`` of length r at these angles, in degrees."""
    theta = torch.tensor(angles, dtype=torch.float64) * math.pi / 180
    x, y = torch.zeros(1, dim, dtype=torch.float64), torch.zeros(len(theta), dim, dtype=torch.float64)
    x[0, 0], y[:, 0], y[:, 1] = r, r * theta.cos(), r * theta.sin()
    return x, y


def errors(family: str, settings: dict[str, Any]) -> Tensor:
    """Return relative errors √MSE / K over the angles of `AXES`."""
    x, y = pairs(settings["r"], AXES["theta"])
    return make(family, **settings).relative_error(x, y)[0]


def settings_of(family: str) -> list[dict[str, Any]]:
    """Return all settings of a family but the angle, the last axis fastest; other axes have their first value."""
    found = [{name: values[0] for name, values in AXES.items() if name != "theta"}]
    for name in FAMILIES[family][:-1]:
        found = [{**one, name: value} for one in found for value in AXES[name]]
    return found


def packed(numbers: np.ndarray) -> dict[str, Any]:
    """Pack positive numbers: 16 bits each on a logarithmic scale, 0 for zero; a step is below a thousandth."""
    shown = numbers > 0
    logs = np.log(np.where(shown, numbers, 1))
    low, high = float(logs[shown].min()), float(logs[shown].max())
    steps = np.where(shown, 1 + np.rint((logs - low) / max(high - low, 1e-9) * (BITS - 1)), 0)
    data = base64.b64encode(steps.astype("<u2").tobytes()).decode()
    return {"low": low, "high": high, "data": data}


def flops(family: str, m: int, n: int) -> int:
    """Return the FLOPs per vector of a map."""
    return make(family, m=m, n=n, sigma=1.0, r=1.0, projection="orthogonal").flops()


def maps() -> list[dict[str, Any]]:
    """Return families, code, FLOPs per vector and the worst error over the angle for every r, of many maps."""
    found = []
    for family, axes in FAMILIES.items():
        for m in [*AXES["m"], 512]:
            for n in AXES["n"] if "n" in axes else AXES["n"][:1]:
                own = {"m": m, "n": n, "sigma": 1.0, "projection": "orthogonal"}
                worst = [float(f"{errors(family, {**own, 'r': r}).max():.4g}") for r in AXES["r"]]
                line = code(family, **own, r=0).replace("radius=0", "radius=RADIUS")  # the page's
                found.append({"family": family, "code": line, "flops": flops(family, m, n), "worst": worst})
    return found


def rows() -> dict[str, Any]:
    """Return one softmax row and its estimates by maps that are drawn again and again, as shares of the exact total."""
    size, dim, radius = ROW["keys"], ROW["dim"], ROW["radius"]
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(size + 1, dim, generator=generator, dtype=torch.float64).split([1, size])
    y[:4] += 1.5 * x  # a few heavy keys
    x, y = (radius * torch.nn.functional.normalize(u, dim=-1) for u in (x, y))
    y = y[kernels.softmax(x, y)[0].argsort(descending=True)]
    exact = kernels.softmax(x, y)[0]
    estimates = {}
    for family in ("Trigonometric", "Positive", "AngularHybrid"):
        for m in ROW["m"]:
            own = {"m": m, "n": ROW["n"], "sigma": 1.0, "r": radius, "projection": "orthogonal", "dim": dim}
            drawn = [make(family, **own, seed=seed).estimate(x, y)[0] for seed in range(ROW["redraws"])]
            shares = torch.stack(drawn) / exact.sum()
            divided = shares / shares.sum(-1, keepdim=True)
            estimates[f"{family} {m}"] = {
                "code": code(family, **own),
                "shares": _rounded(shares),
                "mean": _rounded(shares.mean(0)),
                "divided": _rounded(divided),
                "dividedMean": _rounded(divided.mean(0)),
            }
    return {**ROW, "exact": _rounded(exact / exact.sum()), "estimates": estimates}


def _rounded(numbers: Tensor) -> Any:
    """Return lists of numbers with four digits."""
    return [_rounded(one) if one.ndim else float(f"{one:.4g}") for one in numbers]


def summarised() -> dict[str, Any]:
    """Return, for every τ, which pairs of a real head are computed exactly, their share and the error of the output.

    Queries and keys stand in the order of their groups and clusters.
    """
    text = minilm.passages(minilm.read_text("test"), 8, minilm.CHARACTERS * HEAD["tokens"])[3:4]
    head = slice(HEAD["head"], HEAD["head"] + 1)
    q, k, v = (u[:, head].double() for u in minilm.inputs(text, HEAD["tokens"])[HEAD["layer"]])
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)
    sizes, real = (HEAD["groups"], HEAD["clusters"]), torch.ones(1, HEAD["tokens"], dtype=torch.bool)
    settings = []
    for tau in HEAD["tau"]:
        report = hrf.SummaryReport()
        method = hrf.SummarisedAttention(tolerance=tau, n_groups=sizes[0], n_clusters=sizes[1], report=report)
        out = hrf.attention(q, k, v, method, scale=1.0)
        plan = make_plan(Heads(q[0], k[0], v[0], real, real), *sizes, torch.tensor([tau]).double())
        orders = [parts.tokens[0][parts.filled[0]] for parts in (plan.groups, plan.clusters)]
        pairs = exact_pairs(plan)[orders[0]][:, orders[1]]
        settings.append(
            {
                "tau": tau,
                "error": float((out - exact).norm() / exact.norm()),
                "share": float(report.calls[-1].exact_share.mean()),
                "pairs": base64.b64encode(np.packbits(pairs.numpy()).tobytes()).decode(),
            }
        )
    weights = (q[0, 0] @ k[0, 0].mT)[orders[0]][:, orders[1]].softmax(-1)
    return {
        "tokens": HEAD["tokens"],
        "layer": HEAD["layer"],
        "head": HEAD["head"],
        "sizes": [parts.filled[0].sum(-1).tolist() for parts in (plan.groups, plan.clusters)],
        "settings": settings,
        "weights": packed(weights.clamp(min=1e-6).numpy()),
    }


def exact_pairs(plan: Plan) -> Tensor:
    """Return which pairs of a head are computed exactly, ``(L, S)``."""
    groups, clusters = plan.groups, plan.clusters
    found = torch.zeros(int(groups.filled.sum()), int(clusters.filled.sum()), dtype=torch.bool)
    keys = clusters.tokens[0].flatten()[plan.exact]
    for group in range(groups.tokens.shape[1]):
        queries = groups.tokens[0, group][groups.filled[0, group]]
        found[queries[:, None], keys[plan.starts[group] : plan.starts[group + 1]]] = True
    for place, cluster in plan.opened.tolist():
        found[groups.tokens[0].flatten()[place], clusters.tokens[0, cluster][clusters.filled[0, cluster]]] = (
            True
        )
    return found


def build() -> dict[str, Any]:
    """Return everything that the page reads."""
    tables = {}
    with progress("explorer") as advance:
        for done, family in enumerate(FAMILIES):
            advance(family, done, len(FAMILIES) + 2)
            numbers = torch.stack([errors(family, one) for one in settings_of(family)])
            tables[family] = packed(numbers.numpy())
        advance("maps", len(FAMILIES), len(FAMILIES) + 2)
        found = maps()
        advance("rows", len(FAMILIES) + 1, len(FAMILIES) + 2)
        row, head = rows(), summarised()
    return {
        "dim": DIM,
        "axes": AXES,
        "families": FAMILIES,
        "errors": tables,
        "flops": {f: [[flops(f, m, n) for n in AXES["n"]] for m in AXES["m"]] for f in FAMILIES},
        "maps": found,
        "row": row,
        "head": head,
    }


def main() -> None:
    """Write the tables as a script, which a page may read from disk, too."""
    write(OUT, f"window.HRF = {json.dumps(build(), separators=(',', ':'))};\n".encode())


if __name__ == "__main__":
    main()
