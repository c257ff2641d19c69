from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from hrf_paper.locomotion import load_policy
from hrf_paper.locomotion.__main__ import main
from hrf_paper.locomotion.replay import TRAINED, Look, gap_pixels, kept_shares, masked_images, picture_of
from hrf_paper.locomotion.terrain import level_depth

DEPTH = level_depth().astype(np.float32)
KEPT = np.zeros((2, 24, 32), bool)


def look(depth=DEPTH, kept=KEPT, picture=None):
    return Look(0.0, depth, kept, np.zeros(2), picture, False, False)


def test_the_stored_policy_crosses_fields_that_it_has_never_seen(capsys):
    """It crossed 48 of 50; which fields depends on the processor's rounding. Fewer than 3 of 5: p < 0.001."""
    assert main(["replay", "--fields", "5"]) == 0
    told = capsys.readouterr().out
    assert told.count(": crossed after ") >= 3
    assert "32 of 96 patches" in told


def test_the_stored_policy_is_small_and_has_the_papers_hybrid():
    assert TRAINED.stat().st_size < 100_000
    assert load_policy(TRAINED).config.method == "HRF-A (8, 8)"


@pytest.mark.slow
def test_a_replay_writes_a_gif(tmp_path, capsys):
    assert main(["replay", "--fields", "1", "--gif", str(tmp_path / "new" / "walk.gif")]) == 0
    with Image.open(tmp_path / "new" / "walk.gif") as found:
        assert found.size == (320, 240)
        assert found.n_frames > 20


def test_what_is_masked_is_red():
    kept = KEPT.copy()
    kept[1] = True
    images = masked_images(DEPTH, kept)
    assert images.shape == (24, 65, 3)
    front, belly = images[:, :32].astype(int), images[:, 33:]
    assert (front[..., 0] - front[..., 1] >= 126).all()
    assert (belly[..., 0] == belly[..., 1]).all()


def test_gaps_are_deeper_than_level_ground():
    depth = DEPTH.copy()
    depth[1, 5:8] += 0.2
    expected = np.zeros((2, 24, 32), bool)
    expected[1, 5:8, 8:24] = True  # the sides of an image do not see the way
    np.testing.assert_array_equal(gap_pixels(depth), expected)
    assert kept_shares([look(depth, expected), look()]) == (1.0, 0.0)


def test_a_picture_has_the_images_in_its_corner():
    blank = np.full((240, 320, 3), 9, np.uint8)
    found = picture_of(look(picture=blank))
    assert (found[:48, :130] != 9).any(-1).all()
    assert (found[48:] == 9).all()
    assert (blank == 9).all()
    with pytest.raises(ValueError, match="has no picture"):
        picture_of(look())


def test_files_and_arguments_that_are_wrong_get_a_sentence(tmp_path, capsys):
    (tmp_path / "none.safetensors").write_bytes(b"nothing")
    assert main(["replay", "--policy", str(tmp_path / "none.safetensors")]) == 2
    assert "is not a checkpoint" in capsys.readouterr().err
    assert main(["train", "--rehearsals", "0", "--walks", "0", "--out", str(tmp_path / "a.safetensors")]) == 2
    assert "expected at least one iteration" in capsys.readouterr().err


def test_a_training_writes_its_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HRF_CHECKPOINTS", str(tmp_path / "kept"))
    out = tmp_path / "blind.safetensors"
    assert main(["train", "--method", "blind", "--rehearsals", "1", "--walks", "0", "--out", str(out)]) == 0
    assert load_policy(out).config.method == "blind"
    assert "iteration 1 of 1: return" in capsys.readouterr().out
