"""``python -m hrf_paper.manipulation``: replay a trained policy that sweeps balls into bowls."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hrf.report import folder
from hrf_paper.manipulation import NEEDS
from hrf_paper.manipulation.scene import STEPS
from hrf_paper.requirements import require, run_command

_POLICIES = ("exact", "angular")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 2 if something is wrong with the arguments or files."""
    return run_command(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hrf_paper.manipulation", description=__doc__)
    commands = parser.add_subparsers(required=True)
    shown = commands.add_parser("replay", help="let a trained policy sweep, and write a GIF of it")
    shown.add_argument("--policy", choices=_POLICIES, default="exact", help="attention of a committed policy")
    shown.add_argument("--checkpoint", type=Path, help="a policy of your own instead")
    shown.add_argument("--seed", type=int, default=2_000, help="of the start, unseen in training")
    shown.add_argument("--steps", type=int, default=STEPS, help="longest episode")
    shown.add_argument("--gif", type=Path, default=Path("results/sweeping.gif"))
    shown.add_argument("--frames", type=Path, help="a PNG of six frames, beside the GIF")
    shown.set_defaults(run=_replay)
    return parser


def _replay(arguments: argparse.Namespace) -> None:
    require("the sweeping robot", (*NEEDS, "PIL"))
    from PIL import Image

    from hrf_paper.manipulation.cloning import Search, policy_path, replay, strip
    from hrf_paper.manipulation.training import load_policy
    from hrf_paper.robots import write_gif

    policy = load_policy(arguments.checkpoint or policy_path(arguments.policy))
    print(f"attention {policy.method}: it sweeps for up to {arguments.steps} steps", flush=True)
    found = replay(policy, arguments.seed, Search(), steps=arguments.steps)
    folder(arguments.gif.parent)
    write_gif(arguments.gif, found.frames)
    print(
        f"start {arguments.seed}: {100 * found.delivered:.0f} % of the balls delivered in "
        f"{found.steps} steps\n{arguments.gif}: the scene, and the places the policy looks at in white"
    )
    if arguments.frames is not None:
        Image.fromarray(strip(found.frames, 6)).quantize(128).save(arguments.frames, optimize=True)
        print(arguments.frames)


if __name__ == "__main__":
    sys.exit(main())
