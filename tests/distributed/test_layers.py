"""Layers over ranks train as one layer with all tokens does; redraws are the same on every rank."""

from __future__ import annotations

from ranked.layers import every_layer, redraws, refusals
from ranked.processes import run


def test_outputs_and_gradients_of_parameters():
    for rank, errors in enumerate(run(2, every_layer)):
        wrong = {case: error for case, error in errors.items() if not error <= 1e-10}  # float64
        assert not wrong, f"rank {rank}: {wrong}"


def test_redraws_are_the_same_on_every_rank():
    every = run(3, redraws)
    assert every[0] == every[1] == every[2]
    assert len({tuple(omega) for omega in every[0]}) == 4


def test_what_is_refused():
    first, second = run(2, refusals)
    for texts in (first, second):
        assert texts["weights"].startswith("ValueError: need_weights or attn_mask came with a sequence_group")
        assert texts["mask"].startswith("ValueError: need_weights or attn_mask came with a sequence_group")
        assert texts["summaries"].startswith("ValueError: attention and sequence_group are both given")
        assert texts["two axes"].startswith(
            "ValueError: the mesh has axes ('data', 'sequence'); expected one axis"
        )
        assert texts["a number"].startswith("TypeError: group is of type int; expected a process group")
    assert second["not in the group"].startswith(
        "TypeError: group is GroupMember.NON_GROUP_MEMBER: this rank is not in the group"
    )
