"""``python -m hrf_paper.locomotion``: train a policy, or replay one on unseen stones and show where it looks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hrf.report import folder, write
from hrf_paper.locomotion.evolution import workers
from hrf_paper.locomotion.policy import METHODS, PolicyConfig
from hrf_paper.locomotion.replay import TRAINED, Look, kept_shares, looks, picture_of
from hrf_paper.locomotion.training import LocomotionTrainer, LocomotionTraining, load_policy
from hrf_paper.requirements import run_command
from hrf_paper.robots import write_gif

_FRAMES_PER_SECOND = 5
_SHIFTED = 0.03


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if something is wrong with the arguments or files."""
    return run_command(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hrf_paper.locomotion", description=__doc__)
    commands = parser.add_subparsers(required=True)
    train = commands.add_parser("train", help="train a policy and write its checkpoint")
    train.add_argument("--method", choices=METHODS, default=PolicyConfig.method)
    train.add_argument("--rehearsals", type=int, default=LocomotionTraining.rehearsals)
    train.add_argument("--walks", type=int, default=LocomotionTraining.walks)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--processes", type=int, default=1, help="that walk at the same time")
    train.add_argument("--ray", action="store_true", help="walk on a Ray cluster instead")
    train.add_argument("--out", type=Path, required=True, help="the checkpoint, a .safetensors file")
    train.set_defaults(run=_train)
    replay = commands.add_parser("replay", help="walk over unseen stones with a trained policy")
    replay.add_argument(
        "--policy", type=Path, default=TRAINED, help="a checkpoint; the stored one by default"
    )
    replay.add_argument("--fields", type=int, default=3, help="number of fields")
    replay.add_argument("--first", type=int, default=2_000, help="seed of the first field")
    replay.add_argument("--gif", type=Path, help="where to write pictures of the first field")
    replay.set_defaults(run=_replay)
    return parser


def _train(arguments: argparse.Namespace) -> None:
    folder(arguments.out.parent)
    policy = PolicyConfig(method=arguments.method, seed=arguments.seed)
    training = replace(LocomotionTraining(policy), rehearsals=arguments.rehearsals, walks=arguments.walks)
    with workers(arguments.processes, ray=arguments.ray) as mapped:
        trainer = LocomotionTrainer(training, mapped, partial(print, flush=True))
        trainer.trained()
    write(arguments.out, trainer.path.read_bytes())
    print(arguments.out)


def _replay(arguments: argparse.Namespace) -> None:
    if arguments.gif is not None:
        folder(arguments.gif.parent)
    trained = load_policy(arguments.policy)
    print(
        f"{trained.config.method}, {trained.config.kept} of {trained.config.n_patches} patches are read",
        flush=True,
    )
    for place in range(arguments.fields):
        seed = arguments.first + place
        render = arguments.gif is not None and place == 0
        seen = looks(trained, seed, render=render)
        print(_sentence(seed, seen), flush=True)
        if render:
            pictures = [picture_of(look) for look in seen]
            write_gif(arguments.gif, pictures, frames_per_second=_FRAMES_PER_SECOND)
            print(f"{arguments.gif}: the walk, and its cameras with masked patches in red")


def _sentence(seed: int, seen: list[Look]) -> str:
    """Say how a walk ended, where the policy looked, and how often it moved its feet."""
    last = seen[-1]
    how = (
        "crossed"
        if last.crossed
        else f"fell at {last.x:.1f} m"
        if last.fell
        else f"stopped at {last.x:.1f} m"
    )
    shifted = sum(bool((abs(look.shifts) > _SHIFTED).any()) for look in seen)
    gaps, others = kept_shares(seen)
    return (
        f"field {seed}: {how} after {len(seen)} decisions, {shifted} with a foothold shifted by "
        f"more than 3 cm; it read {gaps:.0%} of the pixels in gaps and {others:.0%} of the others"
    )


if __name__ == "__main__":
    sys.exit(main())
