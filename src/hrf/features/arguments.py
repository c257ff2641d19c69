"""Checks of constructor arguments, which are in `hrf.checks`."""

from hrf.checks import check_positive, check_tensor, shapes_with_heads

__all__ = ["check_positive", "check_tensor", "shapes_with_heads"]
