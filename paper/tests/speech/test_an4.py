"""AN4: counts of its documentation, and files that are missing or changed."""

from __future__ import annotations

import pytest
import torch

from hrf_paper.datasets import MissingData, data_folder
from hrf_paper.speech.corpora import CHANNELS, an4

needs_data = pytest.mark.skipif(
    not (data_folder() / "an4-mfcc").is_dir(), reason="needs an4-mfcc in $HRF_DATA"
)


@needs_data
def test_counts():
    speech = an4()
    assert (len(speech.train), len(speech.test)) == (948, 130)
    assert sum(len(u.features) for side in (speech.train, speech.test) for u in side) == 289_252
    assert [sum(len(u.text.split()) for u in side) for side in (speech.train, speech.test)] == [5442, 773]
    assert len({u.speaker for u in speech.test}) == 10
    assert speech.test[0].text == "RUBOUT G M E F THREE NINE"


@needs_data
def test_speakers_have_mean_zero_and_features_deviation_one():
    speech = an4()
    assert speech.train[0].features.shape[1] == CHANNELS
    everything = torch.cat([u.features for u in speech.train])
    torch.testing.assert_close(everything.std(0), torch.ones(CHANNELS), rtol=1e-4, atol=0)
    for speaker in {u.speaker for u in speech.test}:
        own = torch.cat([u.features for u in speech.test if u.speaker == speaker])
        assert float(own.mean(0).abs().max()) < 1e-4


def test_missing_and_changed_data_get_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    with pytest.raises(MissingData, match="set HRF_DATA to the folder that holds an4-mfcc/"):
        an4()
    (tmp_path / "an4-mfcc").mkdir()
    (tmp_path / "an4-mfcc" / "an4-feat-mfc.tar.gz").write_bytes(b"changed")
    with pytest.raises(ValueError, match="has the SHA-256"):
        an4()
