"""Names of maps: every name builds, numbers are projections, and labels round-trip."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

import hrf
from hrf import catalogue

DIM = 6
FEATURES = {
    "Trig 5": 10,
    "FAVOR+ 5": 10,
    "FAVOR++ 5": 5,
    "FAVOR# 5": 5,
    "HRF-A (5, 3)": 4 * 5 * (3 + 1),
    "HRF-G (5, 3)": 4 * 5 * (2 * 3 + 1),
    "HRF-C (2, 3) 5": 4 * 5 * 6,
    "HRF-C real (2, 3) 5": 2 * 5 * 6,
    "shifted (2, 3) 5": 2 * 5 * 6,
    "separable (2, 3)": 6,
}


def build(name: str, **options):
    data = torch.randn(2, 40, DIM, generator=Generator().manual_seed(0))
    gaussian = {"sigma": 1.0, "radius": 1.0} if name.startswith("HRF-G") else {}
    return catalogue.build(name, DIM, queries=data[0], keys=data[1], **options, **gaussian)


def rows(phi: torch.nn.Module) -> set[int]:
    """Numbers of rows ω in a map; those of a coefficient are left out."""
    found = [module for name, module in phi.named_modules() if isinstance(module, hrf.Projections)]
    return {projections.omega.shape[-2] for projections in found}


def test_all_families_are_tested():
    assert [catalogue.parse(name).family for name in FEATURES] == list(catalogue.FAMILIES)


@pytest.mark.parametrize("name", FEATURES)
def test_a_name_builds_and_its_number_counts_projections(name: str):
    phi = build(name, generator=0)
    assert phi.dim == DIM
    assert phi.feature_dim == FEATURES[name]
    m = catalogue.parse(name).n_projections
    assert m is None or m in rows(phi)


@pytest.mark.parametrize("name", FEATURES)
def test_labels_round_trip(name: str):
    assert catalogue.label(*catalogue.parse(name)) == name
    assert catalogue.parse(name.replace(", ", ",")) == catalogue.parse(name)  # as the paper writes pairs


def test_words_name_families():
    assert set(catalogue.WORDS.values()) < set(catalogue.FAMILIES)
    assert catalogue.label("trigonometric", 8) == "Trig 8"


def test_a_seed_is_a_generator_and_heads_are_passed_on():
    first, second = (
        build("FAVOR+ 5", heads=2, generator=g, projection="iid") for g in (3, Generator().manual_seed(3))
    )
    assert first.heads == 2
    x = torch.ones(2, 1, DIM)
    assert torch.equal(first.queries(x), second.queries(x))


@pytest.mark.parametrize("name", ["FAVOR+ 512 features", "FAVOR", "HRF-A 8", "Trig 0", "HRF-C (3, 3)", ""])
def test_an_unknown_name_lists_what_exists(name: str):
    with pytest.raises(ValueError, match=r"expected one of Trig m, FAVOR\+ m, .*separable \(q, k\)") as error:
        catalogue.parse(name)
    assert repr(name) in str(error.value)


def test_sizes_that_a_family_lacks_are_refused():
    with pytest.raises(ValueError, match=r"has sizes that FAVOR\+ lacks"):
        catalogue.label("FAVOR+", 8, n_clusters=(2, 2))
    with pytest.raises(ValueError, match="there is no map"):
        catalogue.label("HRF-A", 8)


def test_clustered_maps_need_data_of_their_dimension():
    with pytest.raises(ValueError, match="expected queries and keys"):
        catalogue.build("separable (2, 2)", DIM)
    with pytest.raises(ValueError, match="last dimension 6, but dim=4"):
        catalogue.build("separable (2, 2)", 4, queries=torch.zeros(9, DIM), keys=torch.zeros(9, DIM))
