"""Arrays from files, damaged and huge ones included, and atomic writes."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from hrf import atomic_write, read_arrays
from hrf.read_arrays import read_array

ARRAY = np.arange(6.0).reshape(3, 2)

NO_ARRAY = "is damaged, or holds no plain array of numbers"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_kind_of_file(folder):
    np.save("a.npy", ARRAY)
    np.save("whole.npy", ARRAY.astype(np.int32))
    np.savez("one.npz", x=ARRAY)
    np.savez("two.npz", x=ARRAY, y=ARRAY + 1)
    save_file({"x": torch.from_numpy(ARRAY).bfloat16(), "y": torch.ones(1)}, "two.safetensors")
    (folder / "a.csv").write_text("0,1\n2,3\n\n4,5\n")
    (folder / "named.csv").write_text("\ufefffirst,second\n0,1\n2, 3\n4,5e0\n", encoding="utf-8")
    (folder / "with:colon.csv").write_text("0,1\n2,3\n4,5\n")
    whole = ["a.npy", "whole.npy", "one.npz", "a.csv", "named.csv", "with:colon.csv"]
    for location in [*whole, "one.npz:x", "two.npz:x", "two.safetensors:x"]:
        read = read_arrays.read_array(location)
        assert read.dtype == torch.float64
        assert torch.equal(read, torch.from_numpy(ARRAY)), location


def write_bad_files(folder):
    np.save("flat.npy", np.ones(3))
    np.save("empty.npy", np.ones((0, 3)))
    np.save("nan.npy", np.array([[1.0, np.nan], [np.inf, 2.0]]))
    np.save("complex.npy", np.ones((2, 2), dtype=complex))
    np.save("words.npy", np.array([["a", "b"]]))
    np.save("objects.npy", np.array([[1, None]], dtype=object), allow_pickle=True)
    np.savez("two.npz", x=ARRAY, y=ARRAY)
    np.savez("objects.npz", x=np.array([[1, None]], dtype=object))
    (folder / "damaged.npy").write_bytes(b"\x93NUMPY\x01")
    for kind in ("npz", "safetensors"):
        (folder / f"damaged.{kind}").write_bytes(b"nothing of the kind")
    (folder / "latin.csv").write_bytes("1,é\n".encode("latin-1"))
    (folder / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b\n")
    (folder / "word.csv").write_text("1,2\n3,four\n")
    (folder / "nan.csv").write_text("1,nan\n2,3\n")
    (folder / "gap.csv").write_text("1,2\n3,\n")
    (folder / "x.txt").write_text("1")
    (folder / "folder.npy").mkdir()


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("missing.npy", "missing.npy does not exist"),
        ("folder.npy", "folder.npy is not a file"),
        ("x.txt", "x.txt ends in '.txt'; expected one of .npy, .npz, .safetensors, .csv"),
        ("flat.npy", "flat.npy holds numbers of shape (3,); expected a real matrix (N, d)"),
        ("empty.npy", "empty.npy is empty: its shape is (0, 3)"),
        ("nan.npy", "nan.npy has 2 values that are NaN or infinite; expected finite numbers"),
        ("complex.npy", "complex.npy holds complex numbers of shape (2, 2); expected a real matrix (N, d)"),
        ("words.npy", f"words.npy cannot be read as .npy: it {NO_ARRAY}"),
        ("objects.npy", f"objects.npy cannot be read as .npy: it {NO_ARRAY}"),
        ("damaged.npy", f"damaged.npy cannot be read as .npy: it {NO_ARRAY}"),
        ("two.npz", "two.npz holds 2 arrays; name one of them as two.npz:NAME (there are: x, y)"),
        ("two.npz:z", "two.npz has no array 'z'; there are: x, y"),
        ("objects.npz", f"objects.npz:x {NO_ARRAY}"),
        ("damaged.npz", f"damaged.npz cannot be read as .npz: it {NO_ARRAY}"),
        ("damaged.safetensors", "damaged.safetensors cannot be read as .safetensors"),
        ("latin.csv", "latin.csv cannot be read as .csv"),
        ("ragged.csv", "ragged.csv has 1 values in line 3 but 2 in line 2"),
        ("empty.csv", "empty.csv is empty: it has no line with numbers"),
        ("header.csv", "header.csv is empty: it has no line with numbers"),
        ("word.csv", "word.csv has 'four' in line 2, column 2; expected a number"),
        ("gap.csv", "gap.csv has '' in line 2, column 2; expected a number"),
        ("nan.csv", "nan.csv has 1 value that is NaN or infinite; expected finite numbers"),
        ("word.csv:x", "word.csv holds one array, without a name; drop ':x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(location, sentence, folder):
    write_bad_files(folder)
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the sentence is compared below)
        read_arrays.read_array(location)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_wine():
    q, k = read_arrays.wine(3)
    assert q.shape == k.shape == (89, 13)
    both = torch.cat([q, k])
    assert both.mean(0).abs().max() < 1e-12
    assert float(both.square().sum(-1).mean()) == pytest.approx(1)
    assert not torch.equal(read_arrays.wine(4)[0], q)


def test_wine_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match="need scikit-learn"):
        read_arrays.wine()


NUMBERS = np.arange(24.0).reshape(6, 4)


def bytes_of(write, *arguments, **arrays):
    buffer = io.BytesIO()
    write(buffer, *arguments, **arrays)
    return buffer.getvalue()


def contents():
    return {
        "npy": bytes_of(np.save, NUMBERS),
        "npz": bytes_of(np.savez_compressed, x=NUMBERS),
        "safetensors": save({"x": torch.from_numpy(NUMBERS)}),
        "csv": b"a,b\n" + b"".join(b'%d,"%d"\n' % (i, i * i) for i in range(20)),
    }


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
