"""LibriSpeech's layout and the spoken digits."""

from __future__ import annotations

import io
import tarfile
from hashlib import sha256

import numpy as np
import pytest

from hrf_paper.datasets import MissingData, data_folder
from hrf_paper.speech import corpora
from hrf_paper.speech.corpora import DIGITS, download_librispeech, librispeech, spoken_digits

soundfile = pytest.importorskip("soundfile")
EXCERPT = data_folder() / "librispeech-excerpt"


@pytest.mark.skipif(not EXCERPT.is_dir(), reason="needs librispeech-excerpt in $HRF_DATA")
def test_the_excerpt_of_librispeech():
    found = librispeech("train-clean-100", EXCERPT.name, channels=20)
    assert len(found) == 131
    assert {u.speaker for u in found} == {"19", "26", "27"}
    assert sum(len(u.text.split()) for u in found) == 2095
    assert found[0].text == "NORTHANGER ABBEY"
    minutes = sum(len(u.features) for u in found) / 6000
    assert abs(minutes - 13.75) < 0.05


@pytest.mark.skipif(not (data_folder() / "fsdd-subset").is_dir(), reason="needs fsdd-subset in $HRF_DATA")
def test_spoken_digits():
    speech = spoken_digits(channels=20)
    assert (len(speech.train), len(speech.test)) == (600, 300)
    assert {u.text for u in speech.test} == set(DIGITS)
    assert len({u.speaker for u in speech.train}) == 6


def test_missing_and_changed_data_get_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=r"download_librispeech\('dev-clean'\)"):
        librispeech("dev-clean")
    with pytest.raises(MissingData, match="set HRF_DATA to the folder that holds fsdd-subset/"):
        spoken_digits()
    (tmp_path / "fsdd-subset").mkdir()
    (tmp_path / "fsdd-subset" / "fsdd-flac.tar.gz").write_bytes(b"changed")
    with pytest.raises(ValueError, match="has the SHA-256"):
        spoken_digits()
    with pytest.raises(ValueError, match="LibriSpeech has no part 'clean'"):
        download_librispeech("clean")


def archive() -> bytes:
    """Return an archive in LibriSpeech's layout, with one utterance."""
    sound = io.BytesIO()
    soundfile.write(sound, np.zeros(1600), 16_000, format="FLAC")
    files = {"1-2-0000.flac": sound.getvalue(), "1-2.trans.txt": b"1-2-0000 HELLO\n"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"LibriSpeech/dev-clean/1/2/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def test_archives_are_downloaded_checked_and_unpacked(tmp_path, monkeypatch):
    content = archive()
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    monkeypatch.setattr(corpora, "urlopen", lambda url, timeout: io.BytesIO(content))
    with pytest.raises(ValueError, match="has the SHA-256"):
        download_librispeech("dev-clean")
    assert not list((tmp_path / "librispeech").iterdir())
    monkeypatch.setitem(corpora.ARCHIVES, "dev-clean", sha256(content).hexdigest())
    download_librispeech("dev-clean")
    (found,) = librispeech("dev-clean")
    assert (found.name, found.speaker, found.text) == ("1-2-0000", "1", "HELLO")


def test_no_network_gets_a_sentence(tmp_path, monkeypatch):
    def fail(url, timeout):
        raise OSError("no route to host")

    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    monkeypatch.setattr(corpora, "urlopen", fail)
    with pytest.raises(MissingData, match="cannot be downloaded: no route to host"):
        download_librispeech("dev-clean")
