"""Attention and sampling over many machines, on ``torch.distributed``.

sharded_attention.py  `attention`: check, write the state of the own keys, agree, let states meet, read; packed
                      sequences may cross from rank to rank
sampler.py            softmax sampling with the classes on different ranks
ranks.py              collectives, with errors that name ranks and a count of bytes; an error or a difference becomes
                      a sentence on every rank; fingerprints of maps, and redraws that are the same on all ranks
"""

from hrf.distributed.ranks import RankError, Traffic, redraw_, traffic
from hrf.distributed.sampler import ShardedSoftmaxSampler
from hrf.distributed.sharded_attention import attention

__all__ = ["RankError", "ShardedSoftmaxSampler", "Traffic", "attention", "redraw_", "traffic"]
