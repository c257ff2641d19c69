"""Write the table of supported models to docs/supported-models.md: ``python -m tools.supported_models``.

Every architecture of the installed Transformers that builds from a small configuration is built with random weights,
and `hrf.integrations.transformers.check` runs it. Pass model types, such as ``bert llama``, to print these alone.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from hrf.integrations.transformers import Support, check
from hrf.integrations.transformers.interface import why_unsupported

__all__ = ["built", "outcome", "small_config", "table"]

PAGE = Path(__file__).parents[1] / "docs" / "supported-models.md"
START, END = "<!-- table: supported models -->", "<!-- end -->"
MOST_PARAMETERS = 30_000_000

_WIDTH, _HEADS, _LAYERS, _VOCABULARY = 32, 4, 2, 64
# Sizes by the names that configurations have for them.
_SIZES = [
    (
        _WIDTH,
        "hidden_size d_model n_embd dim embed_dim emb_dim encoder_hidden_size decoder_hidden_size embedding_size",
    ),
    (_WIDTH, "projection_dim word_embed_proj_dim rnn_hidden_size attention_hidden_size"),
    (_HEADS, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"),
    (_HEADS, "num_key_value_heads num_encoder_attention_heads num_decoder_attention_heads multi_head_num"),
    (
        _LAYERS,
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers",
    ),
    (_LAYERS, "num_decoder_layers"),
    (
        48,
        "intermediate_size encoder_ffn_dim decoder_ffn_dim d_ff n_inner d_inner ffn_dim moe_intermediate_size",
    ),
    (48, "ffn_hidden_size shared_expert_intermediate_size hidden_dim"),
    (
        8,
        "head_dim d_kv qk_nope_head_dim qk_rope_head_dim v_head_dim patch_size num_conv_pos_embeddings rotary_dim",
    ),
    (16, "kv_lora_rank q_lora_rank num_mel_bins"),
    (4, "num_experts num_local_experts n_routed_experts"),
    (32, "image_size max_source_positions"),
    (128, "max_position_embeddings n_positions max_target_positions"),
    (_VOCABULARY, "vocab_size decoder_vocab_size char_vocab_size"),
]
_NEW = {name: size for size, names in _SIZES for name in names.split()}


def small_config(cls: type[PreTrainedConfig]) -> PreTrainedConfig:
    """Build a configuration of a class with small sizes, wherever it has a size of a known name."""
    default = cls()
    subs = {
        name: type(sub)
        for name in cls.sub_configs
        if isinstance(sub := getattr(default, name), PreTrainedConfig)
    }
    own = [
        name
        for name in _NEW
        if name not in cls.attribute_map and not isinstance(vars(cls).get(name), property)
    ]
    changes: dict[str, Any] = {name: _NEW[name] for name in own if isinstance(vars(default).get(name), int)}
    for name in vars(default):
        if name.endswith("token_id") and isinstance(getattr(default, name), int):
            changes[name] = getattr(default, name) % _VOCABULARY
    changes |= {name: small_config(sub) for name, sub in subs.items()}
    return cls(**changes)


def built(cls: type[PreTrainedConfig]) -> PreTrainedModel:
    """Build a small model with random weights; raise ``ValueError`` if it is not small."""
    config = small_config(cls)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters")
    torch.manual_seed(0)
    return AutoModel.from_config(config).eval()


def outcome(model_type: str) -> str:
    """Return in a few words what `check` says about an architecture."""
    try:
        models = MODEL_MAPPING[CONFIG_MAPPING[model_type]]
        if why_unsupported(models[0] if isinstance(models, tuple) else models):
            return "refused: attention of its own"
        answer = check(built(CONFIG_MAPPING[model_type]))
    except Exception:
        return "not tried: does not build or run from a small configuration"
    finally:
        gc.collect()
    if answer:
        return _by_windows(model_type, answer)
    reasons = {
        "never calls": "refused: has no attention in the interface",
        "position_bias": "refused: position bias",
        "softcap": "refused: soft cap of the logits",
        "s_aux": "refused: attention sinks",
        "neither causal nor": "refused: neither causal nor bidirectional",
        "attention_mask": "refused: a mask of pairs",
        "does more": "refused: more than attention",
    }
    return next(
        (words for part, words in reasons.items() if part in answer.reason), "refused: other masks or reasons"
    )


def _by_windows(model_type: str, answer: Support) -> str:
    """Return which layers of a model that works have a window, by its default configuration: small ones lack some."""
    kinds = getattr(CONFIG_MAPPING[model_type](), "layer_types", None) or []
    local = [kind in ("sliding_attention", "chunked_attention") for kind in kinds if "attention" in kind]
    if not local:
        local = [name in answer.windowed for name in answer.layers]
    if all(local):
        return "works up to the window: every layer has one, and keeps PyTorch's attention beyond it"
    return "works in global layers: layers with a window keep PyTorch's attention" if any(local) else "works"


def table(model_types: list[str]) -> str:
    """Check architectures, one process per core, and write a section per outcome: lists wrap on narrow screens."""
    found: dict[str, list[str]] = defaultdict(list)
    with ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_quiet) as pool:
        for index, (name, words) in enumerate(zip(model_types, pool.map(outcome, model_types), strict=True)):
            print(f"{index + 1} of {len(model_types)}: {name}: {words}", file=sys.stderr, flush=True)
            found[words].append(name)
    order = sorted(found, key=lambda words: (words.startswith("not"), not _works(words), -len(found[words])))
    sections = [f"### {w[0].upper()}{w[1:]} ({len(found[w])})\n\n{', '.join(found[w])}" for w in order]
    return "\n\n".join(sections)


def _works(words: str) -> bool:
    return words.startswith("works")


def _quiet() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)


def main(names: list[str]) -> None:
    """Print the table of these model types, or write the page for all of them."""
    if names:
        print(table(names))
        return
    everything = sorted(name for name, cls in CONFIG_MAPPING.items() if cls in MODEL_MAPPING)
    note = f"With Transformers {transformers.__version__}:\n\n{table(everything)}"
    text = PAGE.read_text()
    before, after = text[: text.index(START)], text[text.index(END) :]
    PAGE.write_text(f"{before}{START}\n{note}\n\n{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
