"""The paper's quadruped on stepping stones, and policies whose attention takes any `hrf` map.

legs         kinematics of a leg; torques of stance and swing legs (compiled)
terrain      stones in a row; depth images of them in closed form
environment  Laikago in PyBullet; a trot, one decision per swing of two legs; ``hrf/StepStones-v0`` for Gymnasium
policy       pixels normalised; patches ranked by attention; the Implicit Attention Policy
evolution    evolution strategies; processes or Ray
training     returns of walks and of rehearsed decisions; trainings that resume bit by bit
replay       a trained policy on unseen stones, and where it looks

``import hrf_paper.locomotion`` registers the environment.
"""

from hrf_paper.requirements import require

require("hrf_paper.locomotion", ("gymnasium", "numba", "pybullet"))

import gymnasium  # noqa: E402 (after the sentence that says what is missing)

from hrf_paper.locomotion.environment import StepStones  # noqa: E402
from hrf_paper.locomotion.evolution import workers  # noqa: E402
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy, PolicyConfig  # noqa: E402
from hrf_paper.locomotion.terrain import StoneField  # noqa: E402
from hrf_paper.locomotion.training import LocomotionTrainer, LocomotionTraining, load_policy  # noqa: E402

__all__ = [
    "ImplicitAttentionPolicy",
    "LocomotionTrainer",
    "LocomotionTraining",
    "PolicyConfig",
    "StepStones",
    "StoneField",
    "load_policy",
    "workers",
]

gymnasium.register("hrf/StepStones-v0", "hrf_paper.locomotion.environment:StepStones")
