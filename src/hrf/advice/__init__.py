"""`advise`: find the feature map for given data and a budget, by fitting every family and measuring held-out errors.

Read in this order: ``advisor.py`` (the function), ``candidates.py`` (families of maps), ``builder.py`` (the
largest map within a budget), ``cost.py`` and ``errors.py`` (cost and error of a map), ``summaries.py`` (summarised
attention, which is no map), ``findings.py`` and ``result.py`` (the records), then ``wording.py``, ``terms.py``,
``figure.py`` and ``page.py`` (the report). `advise_kernel` is the same for kernel machines: ``kernel_advisor.py``,
``kernel_maps.py`` and ``gram.py``.
"""

from hrf.advice.advisor import advise
from hrf.advice.findings import Candidate
from hrf.advice.kernel_advisor import advise_kernel
from hrf.advice.result import Advice

__all__ = ["Advice", "Candidate", "advise", "advise_kernel"]
