"""Implicit behaviour cloning (Florence et al., 2021): the loss of an energy, and the search for its best action.

The loss is the paper's: the negative log-likelihood of the demonstrated action in a softmax over energies, among
random actions. Since an energy is a sum over arms, the softmax over all pairs of halves is a product of two, and N
candidates per arm stand for N² actions.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from hrf_paper.manipulation.performer import ARM_ACTION, VisionPerformer

__all__ = ["cloning_loss", "mirrored", "negatives", "search"]

_GROUP = 32  # samples that search together
_SHRINK = 0.6  # of the noise, from one round of a search to the next
_NOISE = 0.6
_SAME = 0.1
# Reflection at x = 0: x, pitch and yaw change sign, and arms change places.
_REFLECTED = torch.tensor([-1.0, 1.0, 1.0, 1.0, -1.0, -1.0])


def negatives(actions: Tensor, count: int, near: float, generator: Generator) -> Tensor:
    """Draw counter-examples for actions of an arm: ``(B, 6) -> (B, count, 6)``.

    A share ``near`` of them resembles the demonstrations, in equal parts. Some are actions of other examples, which
    makes the energy choose between all that the teacher does. Some have coordinates of the action replaced: by those of
    another example, uniformly or close by. Angles stay in three of four of these, since they give an action away: the
    teacher holds its paddles straight. The others are uniform in [−1, 1].
    """
    size = (len(actions), count, ARM_ACTION)
    drawn = 2 * torch.rand(size, generator=generator) - 1
    own = actions[:, None]
    scales = 0.6 * 0.25 ** torch.rand(*size[:2], 1, generator=generator)  # 0.15 to 0.6
    close = (own + scales * torch.randn(size, generator=generator)).clamp(-1, 1)
    changed = torch.rand(size, generator=generator) < 0.5
    changed[..., 3:] &= torch.rand(*size[:2], 1, generator=generator) < 0.25
    borrowed = actions[torch.randint(len(actions), size[:2], generator=generator)]
    kinds = (borrowed, *(torch.where(changed, other, own) for other in (borrowed, drawn, close)))
    places = torch.arange(count)[:, None]
    found = drawn
    for place, kind in enumerate(kinds):
        found = torch.where((places < near * count) & (places % len(kinds) == place), kind, found)
    return found


def cloning_loss(
    policy: VisionPerformer,
    images: Tensor,
    poses: Tensor,
    actions: Tensor,
    *,
    count: int,
    near: float,
    generator: Generator,
) -> Tensor:
    """Return the mean negative log-likelihood of the demonstrated actions ``(B, 12)``, in nats per arm."""
    code = policy(images, poses)
    losses = []
    for arm, own in enumerate(actions.split(ARM_ACTION, -1)):
        candidates = torch.cat([own[:, None], negatives(own, count, near, generator)], 1)
        energies = policy.energy(code, candidates, arm)
        # A negative that is nearly the action itself is no counter-example.
        same = (candidates[:, 1:] - own[:, None]).abs().amax(-1) < _SAME
        energies = torch.cat([energies[:, :1], energies[:, 1:].masked_fill(same, -torch.inf)], 1)
        losses.append(F.cross_entropy(energies, torch.zeros(len(own), dtype=torch.long)))
    return (losses[0] + losses[1]) / 2


@torch.no_grad()
def search(
    policy: VisionPerformer, images: Tensor, poses: Tensor, *, samples: int, rounds: int, generator: Generator
) -> Tensor:
    """Return actions ``(B, 12)`` at maxima of the energy, found without derivatives.

    Samples form groups. The first round draws uniform samples; later rounds try samples around the best of each group
    so far, with noise that shrinks. Of the groups' maxima one is drawn, with the probability that the softmax of
    energies gives it: a policy that always took the highest maximum would wait for ever where two actions are nearly as
    good.
    """
    code = policy(images, poses)
    groups = max(1, samples // _GROUP)
    found = []
    for arm in range(2):
        best = torch.zeros(len(code), groups, ARM_ACTION)
        for turn in range(rounds):
            size = (len(code), groups, samples // groups, ARM_ACTION)
            if turn:
                noise = _NOISE * _SHRINK**turn * torch.randn(size, generator=generator)
                noise[:, :, 0] = 0
                tried = (best[:, :, None] + noise).clamp(-1, 1)
            else:
                tried = 2 * torch.rand(size, generator=generator) - 1
            # A policy that diverged acts at random.
            energies = policy.energy(code, tried.flatten(1, 2), arm).nan_to_num(0.0).unflatten(1, size[1:3])
            highest, places = energies.max(2)
            best = tried.take_along_dim(places[..., None, None], 2)[:, :, 0]
        chosen = torch.multinomial(highest.softmax(1), 1, generator=generator)
        found.append(best.take_along_dim(chosen[..., None], 1)[:, 0])
    return torch.cat(found, 1)


def mirrored(images: Tensor, poses: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reflect examples at the plane between the arms: the task is symmetric."""
    poses, actions = (
        (part.unflatten(1, (2, ARM_ACTION)).flip(1) * _REFLECTED).flatten(1) for part in (poses, actions)
    )
    return images.flip(2), poses, actions
