"""Relative error over the angle."""
