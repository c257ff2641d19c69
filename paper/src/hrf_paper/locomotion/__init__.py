"""The paper's quadruped on stepping stones, and policies whose attention takes any `hrf` map.

terrain, cameras        stones in a row; depth images of them in closed form
legs, control           kinematics of a leg; torques of stance and swing legs (compiled)
world, walker           Laikago in PyBullet; a trot, one decision per swing of two legs
environment             ``hrf/StepStones-v0`` for Gymnasium
ranking, policy         patches ranked by attention; the Implicit Attention Policy
normalisation           mean and deviation of pixels
episodes                returns of walks and of rehearsed decisions
evolution, workers      evolution strategies; processes or Ray
training                trainings that resume bit by bit
replay                  a trained policy on unseen stones, and where it looks

``import hrf_paper.locomotion`` registers the environment.
"""

from hrf_paper.requirements import require

require("hrf_paper.locomotion", ("gymnasium", "numba", "pybullet"))

import gymnasium  # noqa: E402 (after the sentence that says what is missing)

from hrf_paper.locomotion.environment import StepStones  # noqa: E402
from hrf_paper.locomotion.policy import ImplicitAttentionPolicy, PolicyConfig  # noqa: E402
from hrf_paper.locomotion.terrain import StoneField  # noqa: E402
from hrf_paper.locomotion.training import LocomotionTrainer, LocomotionTraining, load_policy  # noqa: E402
from hrf_paper.locomotion.workers import workers  # noqa: E402

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
