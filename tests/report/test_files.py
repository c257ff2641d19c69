from __future__ import annotations

import pytest

from hrf import report
from hrf.report import files


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "numbers.json"
    report.write(path, b"old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match=r"^cannot write .*numbers\.json: No space left on device$"):
        report.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_is_made_and_refused(tmp_path, monkeypatch):
    assert report.folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"^cannot write .*file: File exists$"):
        report.folder(tmp_path / "file")
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    with pytest.raises(OSError, match=r"^cannot write .*a: Permission denied$"):
        report.folder(tmp_path / "a")
