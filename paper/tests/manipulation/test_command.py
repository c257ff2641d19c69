"""The command that replays a policy, and the committed policies."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image
from torch import Generator

from hrf_paper.manipulation.__main__ import main
from hrf_paper.manipulation.cloning import POLICIES, policy_path, strip
from hrf_paper.manipulation.performer import PerformerConfig, VisionPerformer
from hrf_paper.manipulation.training import CloneTraining, load_policy, save_policy


def test_replay_writes_a_gif_and_frames(tmp_path, capsys):
    config = PerformerConfig(width=16, heads=2, layers=1, hidden=16, values=2, code=16)
    policy = VisionPerformer(config, "exact", Generator())
    save_policy(tmp_path / "own.safetensors", policy, CloneTraining(model=config))
    out = tmp_path / "videos"
    arguments = [
        "--checkpoint",
        str(tmp_path / "own.safetensors"),
        "--steps",
        "2",
        "--gif",
        str(out / "s.gif"),
    ]
    assert main(["replay", *arguments, "--frames", str(out / "s.png")]) == 0
    printed = capsys.readouterr().out
    assert (
        "attention exact: it sweeps for up to 2 steps\nstart 2000: 0 % of the balls delivered in 2 steps"
        in printed
    )
    with Image.open(out / "s.gif") as film:
        assert (film.size, film.n_frames) == ((512, 256), 2)
    with Image.open(out / "s.png") as frames:
        assert frames.size == (1024, 768)


def test_a_file_that_is_no_policy_gets_a_sentence(tmp_path, capsys):
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    assert main(["replay", "--checkpoint", str(tmp_path / "bad.safetensors")]) == 2
    assert "is not a checkpoint" in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pybullet", None)
    assert main(["replay"]) == 2
    assert "the sweeping robot needs pybullet: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("name", POLICIES)
def test_committed_policies_are_small_and_have_their_attention(name):
    path = policy_path(name)
    assert path.stat().st_size < 1_000_000
    assert load_policy(path).method == POLICIES[name]


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match="there is no policy 'blind'; expected one of exact, angular"):
        policy_path("blind")


def test_a_strip_shows_the_first_and_the_last_frame():
    frames = [np.full((2, 4, 3), i, np.uint8) for i in range(10)]
    shown = strip(frames, 4)
    assert shown.shape == (4, 8, 3)
    assert (shown[0, 0, 0], shown[-1, -1, 0]) == (0, 9)
