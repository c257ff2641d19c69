"""The paper's experiments as files: ``NAME.json``, ``NAME.png`` and ``NAME.html`` a run, and ``index.html``."""

from hrf.reproduction.runner import reproduce

__all__ = ["reproduce"]
