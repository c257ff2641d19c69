"""Small models of several families, and inputs for them."""

from __future__ import annotations

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
)

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 40, 16, 4, 2, 2, 11
WINDOW = 4  # tokens, of layers with a sliding window
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


def bart(**options):
    each = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": 24}
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in each.items()}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "forced_eos_token_id": None}
    sizes |= {"vocab_size": VOCABULARY, "d_model": WIDTH, "init_std": 0.4}
    return BartForConditionalGeneration(BartConfig(**sizes, **ids, decoder_start_token_id=2))


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


def mistral(sliding_window=WINDOW):
    return MistralForCausalLM(MistralConfig(**SIZES, **GROUPED, head_dim=4, sliding_window=sliding_window))


def gemma(sliding_window=WINDOW):
    kinds = ["sliding_attention", "full_attention"]
    options = {"sliding_window": sliding_window, "layer_types": kinds, "head_dim": 4}
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, **GROUPED, **options))


def modernbert(sliding_window=WINDOW):
    options = {"local_attention": 2 * sliding_window, "layer_types": ["full_attention", "sliding_attention"]}
    sizes = {name: size for name, size in SIZES.items() if name != "initializer_range"}
    return ModernBertModel(ModernBertConfig(**sizes, **IDS, **options))


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
