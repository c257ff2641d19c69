"""Small models of three families, and inputs for them."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 40, 16, 4, 2, 2, 11
ROUNDING = {"rtol": 1e-9, "atol": 1e-9}  # float64, through two layers with norms

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "initializer_range": 0.4,  # attention that is far from uniform
}
GROUPED = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


def bert(**options):
    return BertModel(BertConfig(**SIZES, **options))


def gpt2(**options):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=0.4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def llama(**options):
    return LlamaForCausalLM(LlamaConfig(**SIZES, **GROUPED, **options))


def made(build, implementation="hrf", **options):
    """Build a model with the same weights on every call."""
    torch.manual_seed(0)
    model = build(**options).double().eval()
    model.set_attn_implementation(implementation)
    return model


def final(output):
    return output.logits if "logits" in output else output.last_hidden_state


def padded(side):
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, {"left": slice(3), "right": slice(-4, None), "middle": slice(2, 5)}[side]] = 0
    return mask


FAMILIES = [bert, gpt2, llama]
DECODERS = [gpt2, llama]


def batches(n=4):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, VOCABULARY, (BATCH, LENGTH), generator=generator) for _ in range(n)]
