"""Layers to train: attention in linear time with the interface of PyTorch's."""

from hrf.nn.encoder import TransformerEncoderLayer
from hrf.nn.multihead import MultiheadAttention

__all__ = ["MultiheadAttention", "TransformerEncoderLayer"]
