"""Attention and sampling over many machines, on ``torch.distributed``.

function.py    `attention`: check, write the state of the own keys, agree, let states meet, read
packed.py      the same for packed sequences, which may cross from rank to rank
shards.py      one rank's part of a call
states.py      how states and their gradients meet: a sum for all ranks, or the sum of the ranks before each
agreement.py   an error or a difference becomes a sentence on every rank
sampler.py     softmax sampling with the classes on different ranks
maps.py        fingerprints of maps, and redraws that are the same on all ranks
ranks.py       collectives, with errors that name ranks and a count of bytes
"""

from hrf.distributed.function import attention
from hrf.distributed.maps import redraw_
from hrf.distributed.ranks import RankError, Traffic, traffic
from hrf.distributed.sampler import ShardedSoftmaxSampler

__all__ = ["RankError", "ShardedSoftmaxSampler", "Traffic", "attention", "redraw_", "traffic"]
