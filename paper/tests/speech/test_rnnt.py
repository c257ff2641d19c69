"""The loss against enumeration of all alignments and against warprnnt-numba."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor

from hrf_paper.speech.transducer import rnnt_loss


def enumerated(logits: Tensor, labels: list[int], blank: int = 0) -> Tensor:
    """Sum the probabilities of all alignments of one utterance: where among T − 1 + U choices the labels stand."""
    logs = logits.log_softmax(-1)
    steps, count = len(logits), len(labels)
    alignments = []
    for places in combinations(range(steps - 1 + count), count):
        t, u, total = 0, 0, logs.new_zeros(())
        for place in range(steps - 1 + count):
            if place in places:
                total, u = total + logs[t, u, labels[u]], u + 1
            else:
                total, t = total + logs[t, u, blank], t + 1
        alignments.append(total + logs[t, u, blank])
    return -torch.stack(alignments).logsumexp(0)


@pytest.mark.parametrize("blank", [0, 3])
def test_all_alignments(blank):
    generator = torch.Generator().manual_seed(0)
    frames, counts = [4, 1, 3, 4], [3, 2, 0, 1]
    logits = torch.randn(4, 4, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, (4, 3), generator=generator)
    labels = labels.where(labels < blank, labels + 1)  # none is the blank
    weights = torch.rand(4, generator=generator, dtype=torch.float64)
    found = rnnt_loss(logits, labels, torch.tensor(frames), torch.tensor(counts), blank=blank)
    expected = torch.stack(
        [enumerated(logits[i, : frames[i]], labels[i, : counts[i]].tolist(), blank) for i in range(4)]
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((side * weights).sum(), logits)[0] for side in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-13)


def test_gradient_by_differences():
    logits = torch.randn(2, 5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels, frames, counts = torch.tensor([[1, 2, 1], [2, 1, 0]]), torch.tensor([5, 3]), torch.tensor([3, 2])
    assert torch.autograd.gradcheck(lambda x: rnnt_loss(x, labels, frames, counts), logits.requires_grad_())


def test_warprnnt():
    """It computes in float32, and so to about 1e-6 of the loss."""
    warprnnt = pytest.importorskip("warprnnt_numba")
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(3, 30, 11, 9, generator=generator)
    labels = torch.randint(1, 9, (3, 10), generator=generator)
    frames, counts = torch.tensor([30, 17, 22]), torch.tensor([10, 4, 0])
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    found = rnnt_loss(ours, labels, frames, counts)
    expected = warprnnt.RNNTLossNumba(blank=0, reduction="none")(
        theirs, labels.int(), frames.int(), counts.int()
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-4)


def test_float32_is_safe_for_long_utterances():
    """At 2,000 frames and 300 labels the float32 loss is the float64 loss but for the rounding of the logits."""
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(1, 2000, 301, 3, generator=generator)
    labels = torch.randint(1, 3, (1, 300), generator=generator)
    sizes = torch.tensor([2000]), torch.tensor([300])
    single, double = logits.clone().requires_grad_(), logits.double().requires_grad_()
    found, expected = (rnnt_loss(side, labels, *sizes) for side in (single, double))
    # An alignment adds 2,300 rounded log-probabilities of up to 20.
    bound = 2300 * 20 * torch.finfo(torch.float32).eps
    assert abs(found.item() - expected.item()) <= bound
    found.sum().backward()
    expected.sum().backward()
    assert bool(single.grad.isfinite().all())
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=0, atol=bound)


def test_gradients_of_a_node_add_up_to_zero_and_padding_has_none():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, 6, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    frames, counts = torch.tensor([6, 4]), torch.tensor([3, 1])
    rnnt_loss(logits, torch.randint(1, 5, (2, 3), generator=generator), frames, counts).sum().backward()
    assert logits.grad.sum(-1).abs().max() <= 1e-14
    assert not logits.grad[1, 4:].any()
    assert not logits.grad[1, :, 2:].any()
    assert logits.grad[1, 3, 1].any()


def test_an_impossible_logit_costs_nothing():
    logits = torch.zeros(1, 2, 2, 4, dtype=torch.float64)
    logits[..., 3] = -math.inf
    loss = rnnt_loss(logits.requires_grad_(), torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))
    assert math.isclose(loss.item(), 3 * math.log(3) - math.log(2))
    loss.sum().backward()
    assert not logits.grad[..., 3].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": torch.tensor([0])}, "frames are \\[0\\]; expected numbers from 1 to 4"),
        ({"n_labels": torch.tensor([3])}, "n_labels are \\[3\\]; expected numbers from 0 to 2"),
        ({"labels": torch.tensor([[1, 0]])}, "or the blank 0"),
        ({"labels": torch.tensor([[1, 5]])}, "numbers outside 0 to 4"),
        ({"labels": torch.tensor([[1]])}, "labels, frames and n_labels have shapes \\(1, 1\\)"),
        ({"blank": 5}, "blank is 5; expected a number from 0 to 4"),
        ({"logits": torch.zeros(4, 3, 5)}, "logits are torch.float32 of shape \\(4, 3, 5\\)"),
    ],
)
def test_refusals(change, message):
    arguments = {
        "logits": torch.zeros(1, 4, 3, 5),
        "labels": torch.tensor([[1, 2]]),
        "frames": torch.tensor([4]),
        "n_labels": torch.tensor([2]),
        "blank": 0,
    } | change
    with pytest.raises(ValueError, match=message):
        rnnt_loss(**arguments)
