"""Files that `hrf.load` refuses: damaged ones, huge ones, and what is no file."""

from __future__ import annotations

import json
import os
import random
import struct
import warnings
from copy import deepcopy

import pytest
import torch
from safetensors.torch import save

import hrf
from mutations import damaged


def content(phi, tmp_path):
    phi.save(tmp_path / "good.safetensors")
    return (tmp_path / "good.safetensors").read_bytes()


def refused_or_read(path):
    """Load a file; only a ``ValueError`` or an ``OSError`` may come out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            hrf.load(path)
        except (ValueError, OSError) as error:
            return str(error)
    return None


def parts_of(header):
    """Return all places in a header: containers and keys."""
    found = []
    stack = [header]
    while stack:
        value = stack.pop()
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            if isinstance(value[key], dict | list):
                stack.append(value[key])
    return found


def nested(depth):
    tree = []
    for _ in range(depth):
        tree = [tree]
    return tree


VALUES = [
    None,
    True,
    -1,
    0,
    3,
    10**12,
    10**30,
    1e300,
    "",
    "iid",
    "Positive",
    [],
    {},
    [[]],
    {"tensor": "x"},
    nested(400),
]


def maps():
    return [
        hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2),
        hrf.Exponential(3, n_projections=2, matrix=torch.eye(3).expand(2, 3, 3) * (1 + 1j), heads=2),
        hrf.GaussianHybrid(4, n_projections=3, n_coefficient_projections=2, sigma=0.5, radius=1.0),
    ]


def test_damaged_bytes(tmp_path):
    path, refused = tmp_path / "map.safetensors", 0
    for phi in maps():
        for bad in damaged(content(phi, tmp_path), 150):
            path.write_bytes(bad)
            refused += refused_or_read(path) is not None
    assert refused > 300


def test_damaged_headers(tmp_path):
    """Every entry of the header may hold anything."""
    rng, path, refused = random.Random(0), tmp_path / "map.safetensors", 0
    for phi in maps():
        whole = content(phi, tmp_path)
        size = struct.unpack("<Q", whole[:8])[0]
        outer = json.loads(whole[8 : 8 + size])
        for _ in range(150):
            header = json.loads(outer["__metadata__"]["hrf"])
            for _ in range(rng.choice((1, 1, 2))):
                container, key = rng.choice(parts_of(header))
                container[key] = deepcopy(rng.choice(VALUES))
            changed = json.dumps(outer | {"__metadata__": {"hrf": json.dumps(header)}}).encode()
            path.write_bytes(struct.pack("<Q", len(changed)) + changed + whole[8 + size :])
            refused += refused_or_read(path) is not None
    assert refused > 300


@pytest.mark.parametrize("name", ["n_projections", "dim", "heads", "n_coefficient_projections"])
def test_absurd_counts_are_refused_before_anything_is_drawn(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda *_, **__: pytest.fail("numbers were drawn"))
    arguments = {"dim": 4, "n_projections": 3, "n_coefficient_projections": 2, name: 10**12}
    header = {
        "format": 1,
        "map": {"class": "AngularHybrid", "arguments": arguments},
        "shared": [],
        "complex": [],
    }
    path = tmp_path / "map.safetensors"
    path.write_bytes(save({"state.x": torch.ones(16)}, metadata={"hrf": json.dumps(header)}))
    with pytest.raises(ValueError, match=f"{name}=1000000000000.* asks for more numbers than the file holds"):
        hrf.load(path)


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    path = tmp_path / "map.safetensors"
    path.write_bytes(struct.pack("<Q", 10**9) + b"{}")
    with pytest.raises(ValueError, match="it has 10 bytes and announces a header of 1000000000"):
        hrf.load(path)


def test_a_header_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "map.safetensors"
    path.write_bytes(save({"state.x": torch.ones(3)}, metadata={"hrf": "[" * 100_000}))
    with pytest.raises(ValueError, match="malformed hrf header: RecursionError"):
        hrf.load(path)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path / "pipe.safetensors", "/dev/zero"):
        with pytest.raises(ValueError, match="is not a regular file; expected a file that"):
            hrf.load(path)
