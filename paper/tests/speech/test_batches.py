"""Batches by length: every utterance once, padding small, variations drawn."""

from __future__ import annotations

import torch

from hrf_paper.speech.utterances import Augmentation, by_length, padding_mask, training_batches
from made_up_speech import utterances

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
