from __future__ import annotations

import pytest
import torch

from hrf import _core as core


@pytest.fixture(params=["team", "pool", "alone"])
def threads(request):
    """Two threads of OpenMP, two of our own, or one."""
    before, library = torch.get_num_threads(), core._library()
    torch.set_num_threads(1 if request.param == "alone" else 2)
    library.set_team(None if request.param == "pool" else core._team())
    yield request.param
    library.set_team(core._team())
    torch.set_num_threads(before)
