"""Features times a state: bidirectional and causal attention for any map with features."""
