"""Kernels for accelerators: what they compile to, a model of their time, and times on the reader's GPU."""
