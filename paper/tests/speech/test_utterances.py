"""Transcripts in one form; joined utterances have all frames and all words."""

from __future__ import annotations

import pytest
import torch

from hrf_paper.speech.utterances import joined, joined_at_random, normalised
from made_up_speech import utterances


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
