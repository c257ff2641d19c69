"""Triton kernels of attention with maps, for accelerators; `maps.py` launches them and is read first.

    exponents.py    tokens, exponents p, log weights and features inside a kernel; the way back from features to p
    sum_tokens.py   S = Σ ψ(y) vᵀ over all tokens, or before every chunk; the twins are ``dense.py`` and ``causal.py``
    read_state.py   quotients φ(x)ᵀS / φ(x)ᵀz, and with the keys of the own chunk
    pull_tokens.py  gradients of tokens and values
    step.py         one token of decoding; the twin is `hrf._attention.causal.one_token`

Features never reach memory. Products take float32 operands, and sums are in float32. ``PRECISION`` is "tf32" where
tokens are in bfloat16, which is coarser; elsewhere three such products, or PyTorch's setting.
"""
