"""Hugging Face Transformers: linear attention by name, or with maps fitted to a trained model.

>>> import torch, transformers
>>> from hrf.integrations.transformers import convert
>>> sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
>>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
>>> report = convert(model, [torch.randint(64, (2, 100)) for _ in range(4)], feature_map="fitted")
>>> sorted(report.layers)
['model.layers.0.self_attn', 'model.layers.1.self_attn']
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hrf.integrations.transformers needs Transformers: pip install 'hybrid-random-features[transformers]'"
    ) from error

from hrf.integrations.transformers.attention import load_maps, register, save_maps
from hrf.integrations.transformers.caches import LinearCache, SummarisedCache
from hrf.integrations.transformers.conversion import Report, convert
from hrf.integrations.transformers.decoder_check import DecoderReport, check_decoder
from hrf.integrations.transformers.interface import FITTED
from hrf.integrations.transformers.support import LayerReport, Support, check

__all__ = [
    "FITTED",
    "DecoderReport",
    "LayerReport",
    "LinearCache",
    "Report",
    "SummarisedCache",
    "Support",
    "check",
    "check_decoder",
    "convert",
    "load_maps",
    "register",
    "save_maps",
]
