"""The command ``hrf``: arguments to one call, errors to one sentence."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

__all__ = ["application", "main"]

_EXTRA = ("matplotlib", "rich", "typer")  # what the extra [cli] brings

_ADVISE = """Which feature map to use for your queries and keys: a table, a figure, the fitted map and a page.

QUERIES and KEYS are .npy, .npz, .safetensors or .csv files with one vector a row; FILE:NAME is one of several
arrays in a file. The kernel is exp(scale · q·k): for attention over d dimensions, --scale is 1/√d. Without
files it runs on scikit-learn's wines: standardised, divided in two, and scaled to norm 1.

Examples:

\b
hrf advise
hrf advise queries.npy keys.npy --scale 0.125
hrf advise a.safetensors:q a.safetensors:k --values a.safetensors:v
hrf advise x.csv y.csv --objective kernel --unit flops --out results/kernel
"""

_REPRODUCE = """The paper's figures and tables from one command: ours beside the printed values, with a verdict.

NAMES are experiments (see --list), or all. Each writes NAME.json, NAME.png and NAME.html, and index.html has the
verdicts of all. A run that was interrupted goes on with the parts that are missing, and a training with its last
checkpoint, in $HRF_CHECKPOINTS or ~/.cache/hrf/checkpoints. Language models are trained at the scale of a CPU, and
with --full at the paper's.

Examples:

\b
hrf reproduce --list
hrf reproduce all --quick
hrf reproduce pointwise clustering --out docs/results
"""


def main() -> None:
    """Run the command; without its libraries, say how to get them."""
    try:
        app = application()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print(
            f"hrf: {error.name} is missing; pip install 'hybrid-random-features[cli]' brings it",
            file=sys.stderr,
        )
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show θ gets a question mark
    app(prog_name="hrf")


def application() -> "typer.Typer":
    """All commands. They are defined in here, so that the module can be imported without typer."""
    import typer

    import hrf
    from hrf import advice_report, files, report
    from hrf.advice import advise as find_advice
    from hrf_paper.experiments import registry
    from hrf_paper.runner import reproduce as run_experiments
    from hrf_paper.terminal import listing

    app = typer.Typer(
        name="hrf",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"hrf {hrf.__version__}")
            raise typer.Exit

    @contextmanager
    def one_sentence() -> Iterator[None]:
        """Wrong values, unusable files, missing extras: what is wrong, on stderr, and exit code 2."""
        try:
            yield
        except (ValueError, OSError, ImportError) as error:
            typer.echo(f"hrf: {error}", err=True)
            raise typer.Exit(2) from error

    @app.callback()
    def hrf_command(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        """Hybrid random features: softmax and Gaussian kernels in linear time."""

    @app.command(help=_ADVISE)
    def advise(
        queries: Annotated[str | None, typer.Argument(help="File with the queries.")] = None,
        keys: Annotated[str | None, typer.Argument(help="File with the keys.")] = None,
        values: Annotated[str | None, typer.Option(help="File with the values, one a key.")] = None,
        budget: Annotated[
            int, typer.Option(help="Each map may cost as much as positive features of this width.")
        ] = 256,
        unit: Annotated[str, typer.Option(help="What is counted: width, flops or time.")] = "width",
        objective: Annotated[
            str | None,
            typer.Option(
                help="Which error: output (with values), attention (without), or kernel.",
                show_default="by values",
            ),
        ] = None,
        scale: Annotated[float, typer.Option(help="Factor of the logits.")] = 1.0,
        seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
        out: Annotated[
            Path, typer.Option(help="Directory for the figure, the map, the numbers and report.html.")
        ] = Path("results"),
    ) -> None:
        """Print a table, save a figure, the best map and a page."""
        with one_sentence():
            if queries is None:
                if values is not None:
                    raise ValueError("there are values without queries and keys; expected all three files")
                q, k, v = *files.wine(seed), None
            elif keys is None:
                raise ValueError(f"there are queries in {queries} but no keys; expected two files")
            else:
                q, k = files.read_array(queries), files.read_array(keys)
                v = None if values is None else files.read_array(values)
            folder = report.folder(out)
            with report.progress("maps") as advance:
                advice = find_advice(
                    q,
                    k,
                    v,
                    budget=budget,
                    unit=unit,
                    objective=objective,
                    scale=scale,
                    seed=seed,
                    progress=advance,
                )
            advice_report.publish(advice, folder)

    @app.command(help=_REPRODUCE)
    def reproduce(
        names: Annotated[list[str] | None, typer.Argument(help="Which experiments, or all.")] = None,
        quick: Annotated[bool, typer.Option("--quick", help="Small settings, seconds each.")] = False,
        full: Annotated[
            bool, typer.Option("--full", help="The paper's sizes, even where a CPU takes days.")
        ] = False,
        seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
        out: Annotated[Path, typer.Option(help="Directory for numbers, figures and pages.")] = Path(
            "results"
        ),
        show_list: Annotated[bool, typer.Option("--list", help="Print all experiments and stop.")] = False,
    ) -> None:
        """Run experiments and write their files."""
        with one_sentence():
            if show_list:
                listing(registry.EXPERIMENTS.values())
                return
            run_experiments(registry.chosen(names or []), quick=quick, full=full, seed=seed, out=out)

    return app
