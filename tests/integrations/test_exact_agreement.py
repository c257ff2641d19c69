"""Models of Transformers, with exact attention in place of ours, agree with their own attention."""

from __future__ import annotations

import pytest
import torch
from transformers import BartConfig, BartModel, StaticCache, ViTConfig, ViTModel

from integrations.models import (
    DECODERS,
    FAMILIES,
    HEADS,
    LAYERS,
    ROUNDING,
    SIZES,
    VOCABULARY,
    WIDTH,
    final,
    made,
    padded,
)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("build", FAMILIES)
def test_agrees_with_exact_attention(build, side, tokens, with_exact):
    mask = None if side is None else padded(side)
    expected, output = (final(made(build, name)(tokens, attention_mask=mask)) for name in ("sdpa", "hrf"))
    real = slice(None) if mask is None else mask.bool()
    torch.testing.assert_close(output[real], expected[real], **ROUNDING)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("pieces", [(8, 3), (8, 1, 1, 1), (4, 4, 3)])
@pytest.mark.parametrize("build", DECODERS)
def test_cached_pieces_agree_with_exact_attention(build, pieces, cache, tokens, with_exact):
    expected = final(made(build, "sdpa")(tokens, attention_mask=padded("left")))
    model, outputs, start = made(build), [], 0
    past = StaticCache(config=model.config, max_cache_len=20) if cache == "static" else None
    for piece in pieces:
        stop = start + piece
        step = model(
            tokens[:, start:stop],
            attention_mask=padded("left")[:, :stop],
            position_ids=torch.arange(start, stop)[None],
            past_key_values=past,
            use_cache=True,
        )
        outputs.append(step.logits)
        past, start = step.past_key_values, stop
    real = padded("left").bool()
    torch.testing.assert_close(torch.cat(outputs, 1)[real], expected[real], **ROUNDING)


def test_other_families_agree_with_exact_attention(tokens, with_exact):
    def bart(**options):
        each = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 24}
        sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in each.items()}
        return BartModel(BartConfig(vocab_size=VOCABULARY, d_model=WIDTH, init_std=0.4, **sizes))

    def vit(**options):
        sizes = {k: v for k, v in SIZES.items() if k != "vocab_size"}
        return ViTModel(ViTConfig(**sizes, image_size=16, patch_size=4))

    image = torch.randn(1, 3, 16, 16).double()
    expected, output = (made(vit, name)(image).last_hidden_state for name in ("sdpa", "hrf"))
    torch.testing.assert_close(output, expected, **ROUNDING)
    expected, output = (
        made(bart, name)(tokens, padded("right"), decoder_input_ids=tokens[:, :6]).last_hidden_state
        for name in ("sdpa", "hrf")
    )
    torch.testing.assert_close(output, expected, **ROUNDING)
