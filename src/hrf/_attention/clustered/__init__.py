"""Clusters: every token meets only the blocks of its own cluster."""
