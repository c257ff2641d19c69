"""The paper's bi-manual sweeping: two arms sweep balls into bowls, and a vision Performer learns it from a teacher.

scene           sizes and limits; images from straight above
environment     an arm with its kinematics and motors; the physics in Bullet; ``hrf/Sweeping-v0`` for Gymnasium
demonstrations  the scripted teacher; random scenes; its episodes, with disturbances
performer       attention methods by name; the policy, an energy of images, poses and actions
cloning         implicit behaviour cloning: loss and search; episodes of a policy: the share of balls that it delivers
training        trainings that resume bit by bit; corrections of a pupil by the teacher
__main__        ``python -m hrf_paper.manipulation``: replay a trained policy

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
