"""Experiments, one file a figure or table: pure functions from settings to results."""
