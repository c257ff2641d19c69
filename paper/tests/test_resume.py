"""Finished parts as files: read back, and refused if they were edited."""

from __future__ import annotations

import pytest

from hrf_paper.resume import FinishedParts


def test_finished_parts(tmp_path):
    kept = FinishedParts(tmp_path, {"name": "x"})
    assert len(kept) == 0
    assert "a" not in kept
    kept["a"], kept["b"] = {"value": 0.1}, {"value": [1, 2]}
    assert sorted(FinishedParts(tmp_path, {"name": "x"})) == ["a", "b"]
    assert FinishedParts(tmp_path, {"name": "x"})["a"] == {"value": 0.1}
    assert "a" not in FinishedParts(tmp_path, {"name": "y"})
    kept["c"] = {1: (0.5, float("nan"))}  # JSON has texts and lists in their place
    assert list(kept["c"]) == ["1"]
    del kept["c"], kept["a"]
    assert list(kept) == ["b"]
    kept.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("was", "edited"), [("0.1", "0.2"), ('"a"', '"b"'), ('"sha256"', '"sha"'), ("{", "")]
)
def test_edited_parts_are_refused(was, edited, tmp_path):
    kept = FinishedParts(tmp_path, {"name": "x"})
    kept["a"] = {"value": 0.1}
    (path,) = kept.place.iterdir()
    path.write_text(path.read_text().replace(was, edited, 1))
    for read in (lambda: kept["a"], lambda: list(kept)):
        with pytest.raises(
            ValueError, match="is damaged or was edited: remove it, and the same command computes"
        ):
            read()
