"""Hugging Face Transformers: attention in linear time by name, or fitted to a trained model.

>>> import torch, transformers
>>> from hrf.integrations.transformers import convert
>>> config = transformers.GPT2Config(64, n_embd=32, n_layer=2, n_head=4)
>>> model = transformers.AutoModelForCausalLM.from_config(config)
>>> report = convert(model, [torch.randint(64, (2, 100)) for _ in range(4)], feature_map="fitted")
>>> sorted(report.layers)
['transformer.h.0.attn', 'transformer.h.1.attn']
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "hrf.integrations.transformers needs Transformers: pip install 'hybrid-random-features[transformers]'"
    ) from error

from hrf.integrations.transformers.attention import FITTED, load_maps, register, save_maps
from hrf.integrations.transformers.convert import Report, convert
from hrf.integrations.transformers.observers import LayerReport

__all__ = ["FITTED", "LayerReport", "Report", "convert", "load_maps", "register", "save_maps"]
