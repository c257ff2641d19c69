"""Utterances and batches."""

from __future__ import annotations

import pytest
import torch

from hrf_paper.speech.utterances import (
    Augmentation,
    by_length,
    joined,
    joined_at_random,
    normalised,
    padding_mask,
    training_batches,
)
from made_up_speech import utterances

# Transcripts in one form; joined utterances have all frames and all words.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<s> hello </s>", "HELLO"),
        ("it’s [noise] ++UM++ Twenty-one!", "IT'S TWENTY ONE"),
        ("", ""),
        ("café", "CAF"),
    ],
)
def test_normalised(text, expected):
    assert normalised(text) == expected
    assert normalised(expected) == expected


def test_joining_keeps_everything_and_speakers_apart():
    single = utterances([40, 60, 50, 45, 70, 30, 55, 65])
    found = joined(single, 100)
    for speaker in ("s0", "s1"):
        own = [u for u in single if u.speaker == speaker]
        long = [u for u in found if u.speaker == speaker]
        assert torch.equal(torch.cat([u.features for u in own]), torch.cat([u.features for u in long]))
        assert " ".join(u.text for u in own) == " ".join(u.text for u in long)
        assert len(long) == 2  # 215 and 200 frames


def test_joining_goes_on_with_the_next_speaker_where_one_is_not_enough():
    single = utterances([40, 60, 50, 45])
    (found,) = joined(single, 1000)
    assert found.name == "u0+u2+u1+u3"
    assert len(found.features) == 195


def test_joining_at_random_uses_every_utterance_once_and_stays_short():
    single = utterances([20 + i for i in range(30)])
    found = joined_at_random(single, 200, torch.Generator().manual_seed(0))
    names = [name for utterance in found for name in utterance.name.split("+")]
    assert sorted(names) == sorted(utterance.name for utterance in single)
    assert max(len(utterance.features) for utterance in found) <= 200
    assert len(found) < len(single)
    speakers = {u.name: u.speaker for u in single}
    for utterance in found:
        assert {speakers[name] for name in utterance.name.split("+")} == {utterance.speaker}


# Batches by length: every utterance once, padding small, variations drawn.

NOTHING = Augmentation(speed=0, warp=0, tilt=0, time_masks=0, channel_masks=0)


def test_groups_are_within_the_limit():
    lengths = [100, 10, 50, 300, 40, 45]
    groups = by_length(lengths, 150)
    assert sorted(i for group in groups for i in group) == list(range(6))
    for group in groups:
        assert len(group) == 1 or max(lengths[i] for i in group) * len(group) <= 150


def test_an_epoch_has_every_utterance_once():
    speech = utterances([20 + i for i in range(25)])
    batches = list(training_batches(speech, 200, NOTHING, torch.Generator().manual_seed(0)))
    frames = torch.cat([batch.frames for batch in batches])
    assert sorted(frames.tolist()) == [len(u.features) for u in speech]
    found = next(b for b in batches if 44 in b.frames.tolist())
    row = found.frames.tolist().index(44)
    # Interpolation to the same length and an unmoved frequency axis round, and no more.
    torch.testing.assert_close(found.features[row, :44], speech[24].features, rtol=0, atol=1e-5)


def test_epochs_depend_on_the_generator_alone():
    speech = utterances([20 + i for i in range(25)])

    def features(seed):
        generator = torch.Generator().manual_seed(seed)
        return [b.features for b in training_batches(speech, 200, Augmentation(), generator)]

    first, again, other = features(0), features(0), features(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_masks_and_speed():
    speech = Augmentation(speed=0.5, warp=0, tilt=0, time_masks=1, time_width=0.5, channel_masks=1)
    generator = torch.Generator().manual_seed(0)
    found = [speech(torch.ones(100, 20), generator) for _ in range(30)]
    lengths = [len(features) for features in found]
    assert 66 <= min(lengths) < 80 < 120 < max(lengths) <= 200
    rows = [int((features == 0).all(1).sum()) for features in found]
    columns = [int((features == 0).all(0).sum()) for features in found]
    assert 0 < max(rows) <= 20
    assert 0 < max(columns) <= 5


def test_tilt_and_warp_change_channels_only():
    generator = torch.Generator().manual_seed(0)
    flat = torch.linspace(0, 1, 20).expand(50, 20)
    found = Augmentation(speed=0, warp=0.3, tilt=0.5, time_masks=0, channel_masks=0)(flat, generator)
    assert found.shape == flat.shape
    torch.testing.assert_close(found, found[:1].expand_as(found))
    assert (found - flat).abs().max() > 0.01


def test_padding_mask():
    assert padding_mask(torch.tensor([1, 3]), 3).tolist() == [[False, True, True], [False, False, False]]
