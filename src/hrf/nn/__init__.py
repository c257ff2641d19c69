"""Layers to train: attention in linear time with PyTorch's interface, and a loss for very many classes."""

from hrf.nn.encoder import TransformerEncoderLayer
from hrf.nn.multihead import MultiheadAttention
from hrf.nn.sampled_softmax import SampledSoftmaxLoss

__all__ = ["MultiheadAttention", "SampledSoftmaxLoss", "TransformerEncoderLayer"]
