"""The demo's rows: maps are far better than uniform weights."""

from examples.demo import rows


def test_maps_are_better_than_uniform_weights():
    found = {name: error for name, error, _ in rows(length=512, rounds=1)}
    exact, positive, trigonometric, uniform = found.values()
    assert exact == 0
    assert max(positive, trigonometric) < uniform / 2
