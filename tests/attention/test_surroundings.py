"""What attention does inside a larger program: compiler, redraws, autocast."""

from __future__ import annotations

import pytest
import torch

import hrf
from attention.data import assert_same, inputs
from features.registry import MAPS, PARTLY_EXACT, build

every_map = pytest.mark.parametrize("name", MAPS | PARTLY_EXACT)
both_ways = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own, where it hands over
@pytest.mark.parametrize("name", ["positive", "angular hybrid"])
@both_ways
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_gives_the_same(name, is_causal, backend):
    q, k, v = inputs(2)
    phi = build(name)

    def attend(q, k, v):
        return hrf.attention(2 * q, k, v, phi, is_causal=is_causal) + 1

    assert_same(torch.compile(attend, backend=backend)(q, k, v), attend(q, k, v), [q, k, v])
    torch.compiler.reset()


@every_map
@both_ways
def test_a_redraw_before_the_backward_pass_does_no_harm(name, is_causal):
    """Where it computes the features again, with another ω the gradients would be wrong: it refuses."""
    phi, (q, k, v) = build(name), inputs()
    outputs = [hrf.attention(q, k, v, phi, is_causal=is_causal) for _ in range(2)]
    (expected,) = torch.autograd.grad(outputs[0].sum(), q)
    phi.redraw_()
    try:
        (received,) = torch.autograd.grad(outputs[1].sum(), q)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017
    else:
        assert torch.equal(received, expected)


@both_ways
def test_autocast_does_not_reach_inside(is_causal):
    q, k, v = (t.detach().float() for t in inputs(2))
    phi = build("positive").float()
    expected = hrf.attention(q, k, v, phi, is_causal=is_causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(hrf.attention(q, k, v, phi, is_causal=is_causal), expected)


@pytest.mark.parametrize(
    "name", ["positive", "trigonometric", "favor#", "angular hybrid", "clustered shifted"]
)
@both_ways
def test_autocast_does_not_reach_the_backward_pass(name, is_causal):
    phi = build(name).float()
    q, k, v = (t.detach().float().requires_grad_() for t in inputs(2))
    outputs = [hrf.attention(q, k, v, phi, is_causal=is_causal) for _ in range(2)]
    expected = torch.autograd.grad(outputs[0].sum(), (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = torch.autograd.grad(outputs[1], (q, k, v), torch.ones_like(outputs[1]))
    for mine, theirs in zip(received, expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["positive", "angular hybrid", "clustered shifted"])
def test_inside_a_transform_results_are_right_or_refused(name):
    """Attention on constants while torch.func differentiates something else."""
    (q, k, v), phi, received = (t.detach() for t in inputs(2)), build(name), []
    expected = hrf.attention(q, k, v, phi)
    try:
        torch.func.grad(lambda x: received.append(hrf.attention(q, k, v, phi)) or x.sum())(torch.ones(2))
    except (NotImplementedError, RuntimeError):
        return
    torch.testing.assert_close(received[0], expected)


@both_ways
@pytest.mark.parametrize("name", ["positive", "trigonometric", "angular hybrid", "clustered shifted"])
def test_an_empty_batch_has_gradients(name, is_causal):
    q, k, v = (t[:0].detach().requires_grad_() for t in inputs(2))
    hrf.attention(q, k, v, build(name), is_causal=is_causal).sum().backward()
    assert q.grad.shape == q.shape


@both_ways
@pytest.mark.parametrize("name", ["trigonometric", "angular hybrid"])
def test_a_step_of_an_optimiser_before_the_backward_pass_is_refused(name, is_causal):
    phi, (q, k, v) = build(name), inputs()
    omega = next(phi.all_projections())
    omega.omega.requires_grad_()
    out = hrf.attention(q, k, v, phi, is_causal=is_causal)
    with torch.no_grad():
        omega.omega.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
