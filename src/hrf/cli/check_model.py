"""``hrf check-model``: a decoder with summarised attention on a text of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hrf.report import needs_extra, one_sentence

__all__ = ["HELP", "check_model"]

HELP = """Compare a decoder of Transformers with summarised and with exact attention on a text.

Reports perplexity, the heads with the largest errors, time, and a verdict. Nothing is trained or changed.

Examples:

\b
hrf check-model HuggingFaceTB/SmolLM2-135M --text book.txt
hrf check-model path/to/model --text book.txt --tokens 8192 --tolerance 0.5 --page heads.html
"""


def check_model(
    name: Annotated[str, typer.Argument(help="Name or folder of a decoder, as from_pretrained takes it.")],
    text: Annotated[Path, typer.Option(help="Text file, in the encoding UTF-8.")],
    tokens: Annotated[
        int, typer.Option(help="Length of the passage, from the beginning of the text.")
    ] = 4096,
    page: Annotated[Path | None, typer.Option(help="HTML file for a map of all heads.")] = None,
    tolerance: Annotated[float, typer.Option(help="Tolerance of summarised attention; 0 is exact.")] = 1.0,
) -> None:
    """Run the comparison and print it."""
    with one_sentence():
        with needs_extra("transformers"):
            from transformers import AutoModelForCausalLM, AutoTokenizer

            from hrf._attention import SummarisedAttention
            from hrf.integrations.transformers import check_decoder
        content = text.read_text(encoding="utf-8")
        typer.echo(f"loading {name}", err=True)
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name).eval()
        longest = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", tokens)
        ids = tokenizer(content, return_tensors="pt")["input_ids"][:, : min(tokens, longest)]
        if ids.shape[1] < min(tokens, longest):
            typer.echo(f"the text has {ids.shape[1]:,} tokens only", err=True)
        elif longest < tokens:
            typer.echo(f"the model has {longest:,} positions only", err=True)
        typer.echo(f"reading {ids.shape[1]:,} tokens three times", err=True)
        report = check_decoder(model, ids, SummarisedAttention(tolerance=tolerance))
        typer.echo(str(report))
        if page is not None:
            report.save_page(page)
