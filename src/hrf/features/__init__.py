"""Feature maps: the estimators of the paper and of later work, behind one contract (``base.py``)."""
