"""Attention of a trained Transformer by methods of the field, at equal FLOPs and at equal time.

``python -m benchmarks.field`` compares `hrf.SummarisedAttention` with other ways to do without the matrix of all pairs,
on MiniLM-L6 without any training. One file per method, each written once and plainly, with its FLOPs per token
beside it (2 per multiply-add):

    nystrom.py     Nyströmformer: landmarks by segment means, iterative pseudo-inverse (Xiong et al., 2021)
    linformer.py   keys and values projected along the length (Wang et al., 2020), by averages or at random
    lsh.py         Reformer: hashing, sorting, chunks (Kitaev et al., 2020)
    clustered.py   clustered and improved clustered attention (Vyas et al., 2020)
    blocks.py      block-sparse attention, blocks of keys chosen by their means
    maps.py        feature maps of `hrf`: FAVOR+, FAVOR++, FAVOR#, fitted clusters
    summarised.py  `hrf.SummarisedAttention`

``method.py`` has the contract, ``families.py`` the table of all methods, ``sizes.py`` finds sizes of equal cost,
``measure.py`` errors and times, ``table.py`` prints.
"""
