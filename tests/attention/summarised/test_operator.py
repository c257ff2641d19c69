"""Summarised attention in compiled and exported graphs: one operator, with gradients, at any length."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn

import hrf


class Model(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.method = hrf.SummarisedAttention(**options)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        masks = {"key_padding_mask": padding, "query_padding_mask": padding}
        return 2 * hrf.attention(self.linear(x), x, x, self.method, **masks)


def tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, 2, length, 16, generator=Generator().manual_seed(length))


@pytest.mark.parametrize("options", [{}, {"tolerance": "auto", "target_error": 0.1}, {"n_groups": 8}])
def test_one_graph_gives_outputs_gradients_and_reports(options):
    report = hrf.SummaryReport()
    model = Model(report=report, **options)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (300, 400):
        x = tokens(2, length).requires_grad_()
        padding = torch.arange(length).expand(2, -1) >= torch.tensor([[length], [290]])
        wanted = x, *model.parameters()
        expected = torch.autograd.grad(model(x, padding).square().sum(), wanted)
        report.calls.clear()
        output = compiled(x, padding)
        assert torch.equal(output, model(x, padding))
        assert len(report.calls) == 2
        for received, gradient in zip(
            torch.autograd.grad(output.square().sum(), wanted), expected, strict=True
        ):
            assert torch.equal(received, gradient)
    torch.compiler.reset()


def test_an_exported_graph_takes_any_length(tmp_path):
    model = Model(tolerance=0.5)
    lengths = {"x": {2: torch.export.Dim("length", min=2, max=8192)}}
    program = torch.export.export(model, (tokens(1, 300),), dynamic_shapes=lengths)
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for length in (3, 299, 1000):
        x = tokens(1, length)
        assert torch.equal(loaded(x), model(x))
