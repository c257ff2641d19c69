"""Profiles: fixed cases in the suite, fewer under ``make test``, and thousands of random ones under ``make fuzz``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Times depend on the machine, and how many cases are thrown away is a choice of the strategies.
_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("ci", max_examples=10, derandomize=True, database=None, **_COMMON)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=3)
settings.register_profile("fuzz", max_examples=20, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HRF_PROFILE", "ci"))
