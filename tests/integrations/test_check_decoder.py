"""`check_decoder` and ``hrf check-model``: what they measure, and what they say."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

import hrf
from hrf import cli
from hrf.integrations.transformers import DecoderReport, check_decoder
from integrations.models import HEADS, LAYERS, SIZES, VOCABULARY, bert, gemma, gpt2, llama, mistral

LENGTH = 1300


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def masked():
    return BertForMaskedLM(BertConfig(**SIZES))


def built(build=llama, **options):
    torch.manual_seed(0)
    return build(**options).eval()


@pytest.fixture(scope="module")
def report(ids):
    return check_decoder(built(), ids)


def test_perplexities_are_those_of_the_losses(report, ids):
    model = built()
    losses = []
    for name in ("hrf-summarised", "sdpa"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[:, :-1]
        losses.append(float(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())))
    assert report.perplexity == pytest.approx(math.exp(losses[0]), rel=1e-5)
    assert report.exact_perplexity == pytest.approx(math.exp(losses[1]), rel=1e-5)
    assert report.change == pytest.approx(math.exp(losses[0] - losses[1]) - 1, abs=1e-5)
    assert report.perplexity != report.exact_perplexity


def test_divergence_and_agreement_are_those_of_late_tokens(report, ids):
    model, found = built(), []
    for name in ("hrf-summarised", "sdpa"):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found.append(model(ids, use_cache=False).logits[:, 1024:-1].double())
    ours, exact = (u.log_softmax(-1) for u in found)
    assert report.kl == pytest.approx(
        float((exact.exp() * (exact - ours)).sum(-1).mean()), rel=1e-2, abs=1e-6
    )
    same = (ours.argmax(-1) == exact.argmax(-1)).float().mean()
    assert report.same_top == pytest.approx(float(same), abs=0.01)


def test_heads_have_errors_and_exact_shares(report):
    assert report.tokens == LENGTH
    assert report.errors.shape == report.exact_shares.shape == (LAYERS, HEADS)
    assert (report.errors >= 0).all()
    assert report.errors.max() < 0.15
    assert ((report.exact_shares > 0.5) & (report.exact_shares <= 1)).all()
    worst = report.worst(3)
    assert [error for *_, error, _ in worst] == sorted((e for *_, e, _ in worst), reverse=True)
    layer, head, error, share = worst[0]
    assert error == float(report.errors[layer, head]) == float(report.errors.max())
    assert share == float(report.exact_shares[layer, head])
    assert report.seconds > 0
    assert report.exact_seconds > 0


def test_it_prints_a_table_and_a_verdict(report):
    text = str(report)
    layer, head, *_ = report.worst(1)[0]
    words = [
        "1,300 tokens",
        "perplexity",
        "divergence",
        "same most likely token",
        f"layer {layer}, head {head}",
    ]
    for word in words:
        assert word in text
    assert text.endswith(report.verdict)


def given(change: float, speed: float = 2.0, tokens: int = 4096) -> DecoderReport:
    zeros = torch.zeros(1, 1)
    return DecoderReport(tokens, 10 * (1 + change), 10.0, 0.0, 1.0, zeros, zeros, 1.0, speed, [0])


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (given(0.0), "Use it: perplexity changes by +0.00%, and the whole model is 2.00 times as fast."),
        (
            given(-0.002, speed=0.5),
            "Use it: perplexity changes by -0.20%, and the whole model is 2.00 times as slow.",
        ),
        (given(0.005), "Perplexity changes by +0.50% (2.00 times as fast): try a smaller tolerance."),
        (given(-0.005), "Perplexity changes by -0.50% (2.00 times as fast): try a smaller tolerance."),
        (
            given(0.2),
            "Do not use it here: perplexity changes by +20.00%; try tolerance=0.25, or stay exact.",
        ),
        (given(0.0, tokens=1024), "Up to 1,024 tokens attention is exact: check a longer text."),
    ],
)
def test_verdicts(report, verdict):
    assert report.verdict == verdict


def test_a_method_is_used_and_the_model_stays_as_it_was(ids):
    model = built()
    model.set_attn_implementation("eager")
    own = hrf.SummaryReport()
    method = hrf.SummarisedAttention(tolerance=0, report=own)
    found = check_decoder(model, ids, method)
    assert found.change == pytest.approx(0, abs=1e-5)
    assert found.same_top > 0.999
    assert (found.exact_shares == 1).all()
    assert found.errors.max() < 1e-4
    assert model.config._attn_implementation == "eager"
    assert method.report is own
    coarse = check_decoder(model, ids, hrf.SummarisedAttention(tolerance=math.inf))
    assert coarse.kl > found.kl
    assert (coarse.exact_shares < 1).all()


def test_attention_stays_after_an_error(ids):
    model = built()
    model.set_attn_implementation("eager")
    with pytest.raises(IndexError):
        check_decoder(model, ids + VOCABULARY)
    assert model.config._attn_implementation == "eager"


def test_short_texts_are_said_to_be_short():
    report = check_decoder(built(), torch.randint(1, VOCABULARY, (1, 50)))
    assert report.verdict == "Up to 1,024 tokens attention is exact: check a longer text."
    assert report.errors.max() < 1e-5
    assert math.isfinite(report.kl)
    assert check_decoder(built(), torch.randint(1, VOCABULARY, (1, 2))).tokens == 2
    for shape in ((5,), (1, 1)):
        with pytest.raises(ValueError, match=r"input_ids has shape .*; expected \(batch, tokens\)"):
            check_decoder(built(), torch.ones(shape, dtype=torch.long))


def test_layers_with_windows_are_left_out(ids):
    model = built(gemma)
    report = check_decoder(model, ids)
    assert report.layers == [1]
    assert report.errors.shape == (1, HEADS)
    assert report.worst(1)[0][0] == 1
    assert re.search(r"layer 1, head \d", str(report))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (mistral, "all layers of this MistralForCausalLM have a sliding window"),
        (bert, "this BertModel predicts no tokens"),
        (masked, "this BertSelfAttention is not causal"),
    ],
)
def test_other_models_are_refused(build, words, ids):
    model = built(build)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=f"{words}.*expected a"):
        check_decoder(model, ids[:, :100])
    assert model.config._attn_implementation == before


def test_gpt2_is_a_decoder():
    ids = torch.randint(1, VOCABULARY, (1, 900))
    assert check_decoder(built(gpt2), ids).errors.shape == (LAYERS, HEADS)


# The command.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    words = {f"w{i}": i for i in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    built().save_pretrained(folder)
    g = torch.Generator().manual_seed(2)
    text = folder / "text.txt"
    text.write_text(" ".join(f"w{i}" for i in torch.randint(VOCABULARY, (1250,), generator=g).tolist()))
    return folder


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), ["check-model", *map(str, arguments)])


def test_the_command_reports(saved):
    result = run(saved, "--text", saved / "text.txt", "--tokens", "1200")
    assert result.exit_code == 0, result.output
    assert "1,200 tokens" in result.stdout
    assert "perplexity" in result.stdout
    assert "Use it" in result.stdout or "erplexity changes" in result.stdout
    assert "the text has" not in result.stderr
    assert "reading 1,200 tokens three times" in result.stderr


def test_the_command_says_that_a_text_is_short_and_takes_a_tolerance(saved):
    result = run(saved, "--text", saved / "text.txt", "--tolerance", "0")
    assert result.exit_code == 0, result.output
    assert "the text has 1,250 tokens only" in result.stderr
    assert "100 %" in result.stdout or "100.0%" in result.stdout
    assert "Use it: perplexity changes by" in result.stdout


def test_the_command_has_help():
    text = run("--help").stdout
    for word in ("--text", "--tokens", "--tolerance", "hrf check-model HuggingFaceTB/SmolLM2-135M"):
        assert word in text


@pytest.mark.parametrize("problem", ["no text", "no model", "empty", "negative", "no tokens"])
def test_the_command_refuses_in_a_sentence(problem, saved, tmp_path):
    text, options = saved / "text.txt", []
    if problem == "no text":
        text = tmp_path / "missing.txt"
    if problem == "empty":
        text = tmp_path / "empty.txt"
        text.write_text("")
    options = {"negative": ["--tolerance", "-1"], "no tokens": ["--tokens", "0"]}.get(problem, [])
    result = run(tmp_path / "missing" if problem == "no model" else saved, "--text", text, *options)
    assert result.exit_code not in (0, None)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.output.strip()
