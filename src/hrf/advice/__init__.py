"""`advise`: find the feature map for given data and a budget, by fitting every family and measuring held-out errors.

errors.py          errors of maps on held-out data, of attention and of kernel machines; summarised attention
candidates.py      costs, the largest map within a budget, and every family of maps at one budget
findings.py        records of what was measured, and the words for them
advisor.py         data, `Advice` and `advise`; kernel_advisor.py has maps by name and `advise_kernel`
figure.py, page.py the report
"""

from hrf.advice.advisor import Advice, advise, advise_heads
from hrf.advice.findings import Candidate
from hrf.advice.kernel_advisor import advise_kernel

__all__ = ["Advice", "Candidate", "advise", "advise_heads", "advise_kernel"]
