from __future__ import annotations

import pytest

from hrf import atomic_write


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "numbers.json"
    atomic_write.write(path, b"old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match=r"^cannot write .*numbers\.json: No space left on device$"):
        atomic_write.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_is_made_and_refused(tmp_path, monkeypatch):
    assert atomic_write.folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"^cannot write .*file: File exists$"):
        atomic_write.folder(tmp_path / "file")
    monkeypatch.setattr(atomic_write.os, "access", lambda path, mode: False)
    with pytest.raises(OSError, match=r"^cannot write .*a: Permission denied$"):
        atomic_write.folder(tmp_path / "a")
