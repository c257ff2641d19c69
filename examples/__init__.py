"""Examples to run: ``python -m examples.<name>``."""
