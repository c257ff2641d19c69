"""The paper's bi-manual sweeping: two arms sweep balls into bowls, and a vision Performer learns it from a teacher.

scene, arms, table        sizes and limits; an arm with its kinematics and motors; the physics in Bullet
drawing                   images from straight above
expert                    the scripted teacher
environment               ``hrf/Sweeping-v0`` for Gymnasium
demonstrations            episodes of the teacher, with disturbances
attention, performer      attention methods by name; the policy, an energy of images, poses and actions
cloning, training         implicit behaviour cloning; trainings that resume bit by bit
rollouts                  episodes of a policy: the share of balls that it delivers
command                   ``python -m hrf_paper.manipulation``: replay a trained policy

Importing this package registers the environment where Gymnasium is installed.
"""

from hrf_paper.requirements import missing

__all__ = ["ENVIRONMENT", "NEEDS"]

ENVIRONMENT = "hrf/Sweeping-v0"
NEEDS = ("gymnasium", "pybullet")

if not missing(NEEDS):
    import gymnasium

    if ENVIRONMENT not in gymnasium.registry:
        gymnasium.register(ENVIRONMENT, entry_point="hrf_paper.manipulation.environment:SweepingEnv")
