from __future__ import annotations

import numpy as np
import pytest

from hrf_paper.locomotion.legs import TRUNK_HEIGHT
from hrf_paper.locomotion.terrain import (
    PLATFORM,
    RANGE,
    StoneField,
    depth_images,
    draw_stones,
    ground_points,
    level_depth,
    nearest_ground,
    off_stone,
)

STANDING = np.array([0.0, 0.0, TRUNK_HEIGHT])
STONES = np.array([[-1.0, 0.7], [0.85, 1.5]])


def test_stones_have_the_papers_sizes():
    field = StoneField()
    for seed in range(20):
        stones = draw_stones(field, np.random.default_rng(seed))
        lengths, gaps = np.diff(stones)[1:, 0], stones[1:, 0] - stones[:-1, 1]
        assert lengths.min() >= 0.5
        assert lengths.max() <= 0.8
        assert gaps.min() >= 0.1
        assert gaps.max() <= 0.2
        assert stones[0, 1] - stones[0, 0] == pytest.approx(PLATFORM)
        assert stones[-1, 1] > field.distance + 1
        assert len(stones) - 1 <= field.most_stones


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"lengths": (0.5, 1.1)}, r"lengths is \(0.5, 1.1\); expected the longest to be up to twice"),
        ({"gaps": (0.2, 0.1)}, r"gaps is \(0.2, 0.1\); expected two lengths"),
        ({"distance": 0.0}, "distance is 0.0 and width is 0.5; expected positive"),
    ],
)
def test_fields_that_cannot_be_get_a_sentence(sizes, sentence):
    with pytest.raises(ValueError, match=sentence):
        StoneField(**sizes)


def test_nearest_ground_keeps_a_margin():
    x = np.array([0.3, 0.69, 0.74, 0.80, 1.6])
    np.testing.assert_allclose(nearest_ground(STONES, x, 0.03), [0.3, 0.67, 0.67, 0.88, 1.47])
    np.testing.assert_allclose(off_stone(STONES, x), [0, 0, 0.04, 0.05, 0.1], atol=1e-12)


def test_level_ground_looks_level():
    level = depth_images(STANDING, np.eye(3), np.array([[-5.0, 9.0]]), width=50.0)
    np.testing.assert_allclose(level, level_depth(), atol=1e-6)


def test_pixels_see_a_gap_where_it_is():
    seen = depth_images(STANDING, np.eye(3), STONES, width=50.0)
    x = ground_points()[..., 0]
    deeper = seen > level_depth() + 1e-3
    # The face of the next stone hides its far end: the ground behind is seen again beyond the edge.
    inside = (x > 0.71) & (x < 0.84)
    assert deeper[inside].all()
    assert not deeper[(x < 0.69) | ((x > 0.86) & (x < 1.45))].any()


def test_the_face_of_a_stone_is_nearer_than_the_bottom():
    stones = np.array([[-1.0, 0.5], [0.55, 3.0]])
    seen = depth_images(STANDING, np.eye(3), stones, width=50.0)
    x = ground_points()[0, :, 16, 0]
    gap = (x > 0.5) & (x < 0.55)
    assert gap.any()
    assert (seen[0, gap, 16] < 1).all()


def test_beside_the_stones_nothing_is_in_range():
    seen = depth_images(STANDING, np.eye(3), STONES, width=0.5)
    beside = np.abs(ground_points()[..., 1]) > 0.26
    assert (seen[beside] == 1).all()


def test_images_are_those_of_the_engine():
    """Rays that PyBullet traces to boxes of the same sizes."""
    bullet = pytest.importorskip("pybullet")
    from hrf_paper.locomotion.environment import World
    from hrf_paper.locomotion.terrain import _PLACES, _RAYS

    field = StoneField()
    world = World(field, time_step=0.006, visual=False)
    stones = draw_stones(field, np.random.default_rng(1))
    world.reset(stones)
    engine = world.engine
    engine.resetBasePositionAndOrientation(world.robot, (0, 0, 50), (0, 0, 0, 1))  # legs are not seen
    engine.performCollisionDetection()
    position = np.array([0.4, 0.03, 0.41])
    rotation = np.array(bullet.getMatrixFromQuaternion(bullet.getQuaternionFromEuler((0.02, -0.03, 0.01))))
    rotation = rotation.reshape(3, 3)
    eyes = np.repeat(position + _PLACES @ rotation.T, 24 * 32, 0)
    ends = eyes + RANGE * (_RAYS @ rotation.T).reshape(-1, 3)
    traced = np.array([hit[2] for hit in engine.rayTestBatch(eyes, ends)]).reshape(2, 24, 32)
    world.close()
    seen = depth_images(position, rotation, stones, field.width)
    # Boxes have sides along the way, which the closed form leaves out, and rounded edges.
    assert (np.abs(seen - traced) < 0.01).mean() > 0.97
