"""The command ``hrf``: arguments to one call, errors to one sentence."""

from __future__ import annotations

import io
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from hrf.report import needs_extra, one_sentence

if TYPE_CHECKING:
    import typer

__all__ = ["application", "main"]

_HELP = """Hybrid random features: softmax and Gaussian kernels in linear time.

Examples:

\b
hrf advise queries.npy keys.npy --scale 0.125
hrf check-model path/to/decoder --text book.txt
hrf reproduce angles
hrf reproduce --list
"""


def main() -> None:
    """Run the command; without its libraries, say how to get them."""
    with needs_extra("cli"):
        app = application()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ gets a question mark
    app(prog_name="hrf")


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph, for the terminal to break, but for those that begin with a backspace."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split("\n")) for part in paragraphs)


def application() -> typer.Typer:
    """Build the application. Commands are imported here, so that this module can be imported without typer."""
    import typer

    from hrf import __version__
    from hrf.cli.advise import HELP as ADVISE
    from hrf.cli.advise import advise
    from hrf.cli.check_model import HELP as CHECK_MODEL
    from hrf.cli.check_model import check_model

    app = typer.Typer(
        name="hrf",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"hrf {__version__}")
            raise typer.Exit

    version = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Print the version."
    )

    @app.callback(help=_HELP)
    def hrf_command(version: bool = version) -> None:
        """Take the options that stand before a command."""

    app.command(help=_unwrapped(ADVISE))(advise)
    app.command("check-model", help=_unwrapped(CHECK_MODEL))(check_model)
    added = {entry.name: entry.load() for entry in entry_points(group="hrf.commands")}
    for name, command in added.items():
        app.command(name, help=command.__doc__)(command)
    if "reproduce" not in added:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command("reproduce", help=_reproduce.__doc__, context_settings=anything)(_reproduce)
    return app


def _reproduce() -> None:
    """Reproduce the paper's figures and tables. Needs the package hybrid-random-features-paper."""
    with one_sentence():
        raise ModuleNotFoundError(
            "reproduce needs hybrid-random-features-paper; pip install ./paper, from a clone of the repository, "
            "brings it"
        )
