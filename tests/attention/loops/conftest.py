from __future__ import annotations

import pytest
import torch

from hrf._attention import loops as compiled


@pytest.fixture(params=["team", "pool", "alone"])
def threads(request, monkeypatch):
    """Two threads of OpenMP, two of a pool, or one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "alone" else 2)
    if request.param == "pool":
        monkeypatch.setattr(compiled, "_team", lambda: None)
    yield request.param
    torch.set_num_threads(before)
