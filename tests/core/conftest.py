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


@pytest.fixture(params=core.INSTRUCTIONS)
def instructions(request, monkeypatch):
    """Each instruction set in turn, as HRF_CORE would choose it."""
    monkeypatch.setenv("HRF_CORE", request.param)
    for choice in (core.instructions, core._library):
        choice.cache_clear()
    try:
        core.instructions()
    except ValueError as error:  # the processor does not grant it
        pytest.skip(str(error))
    yield request.param
    monkeypatch.undo()
    for choice in (core.instructions, core._library):
        choice.cache_clear()
