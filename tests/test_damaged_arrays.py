"""Damaged and huge files that `read_array` refuses in one sentence."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save

from hrf.read_arrays import read_array
from mutations import damaged

ARRAY = np.arange(24.0).reshape(6, 4)


def bytes_of(write, *arguments, **arrays):
    buffer = io.BytesIO()
    write(buffer, *arguments, **arrays)
    return buffer.getvalue()


def contents():
    return {
        "npy": bytes_of(np.save, ARRAY),
        "npz": bytes_of(np.savez_compressed, x=ARRAY),
        "safetensors": save({"x": torch.from_numpy(ARRAY)}),
        "csv": b"a,b\n" + b"".join(b'%d,"%d"\n' % (i, i * i) for i in range(20)),
    }


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "csv"])
def test_damaged_bytes(kind, tmp_path):
    path, sentences = tmp_path / f"x.{kind}", []
    for bad in damaged(contents()[kind], 400):
        path.write_bytes(bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read_array(str(path))
            except ValueError as error:
                sentences.append(str(error))
    assert len(sentences) > 80
    assert not any("\n" in sentence for sentence in sentences)


def npy(header):
    """Return a file with this header and little else."""
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 4)}\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000000000, 4)}\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (\n",
        "[" * 5000,
    ],
)
def test_absurd_headers(header, tmp_path, monkeypatch):
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("numbers were allocated"))
    (tmp_path / "x.npy").write_bytes(npy(header))
    with pytest.raises(ValueError, match="is damaged, or holds no plain array of numbers"):
        read_array(str(tmp_path / "x.npy"))


def test_fields_longer_than_csv_allows(tmp_path):
    (tmp_path / "x.csv").write_text("1," + "2" * 200_000)
    with pytest.raises(ValueError, match=r"x\.csv cannot be read as \.csv: field larger than field limit"):
        read_array(str(tmp_path / "x.csv"))


@pytest.mark.parametrize("text", ["1;2\n3;4\n", "a;b\n1,5;2\n3;4,5\n", "1;2\n", "1,5;2,5\n2;3\n"])
def test_semicolons_get_one_sentence(text, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=r"x\.csv separates its values by semicolons; expected commas"):
        read_array(str(tmp_path / "x.csv"))


def test_semicolons_in_names_are_no_separators(tmp_path):
    (tmp_path / "x.csv").write_text("a;b,c\n1,2\n")
    assert read_array(str(tmp_path / "x.csv")).tolist() == [[1.0, 2.0]]
