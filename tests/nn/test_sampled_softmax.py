"""The sampled-softmax loss against full cross-entropy."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Generator, nn
from torch.nn import functional as F

import hrf
from hrf.nn import SampledSoftmaxLoss
from hrf.sampling import (
    ExactSoftmaxSampler,
    LogUniformSampler,
    Sampler,
    Samples,
    SoftmaxSampler,
    UniformSampler,
)

DIM, CLASSES = 5, 12
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64, sums of a dozen terms


def inputs():
    """Hidden states (2, 3, d), targets, weight and bias."""
    leaves = [torch.randn(2, 3, DIM), 0.5 * torch.randn(CLASSES, DIM), torch.randn(CLASSES)]
    hidden, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    return hidden, torch.randint(CLASSES, (2, 3)), weight, bias


def full(hidden, targets, weight, bias=None, **options):
    return F.cross_entropy(F.linear(hidden, weight, bias).flatten(0, -2), targets.flatten(), **options)


def samplers(weight):
    phi = hrf.Positive(DIM, n_projections=16)
    return {
        "uniform": UniformSampler(CLASSES),
        "log-uniform": LogUniformSampler(CLASSES),
        "exact": ExactSoftmaxSampler(weight),
        "tree": SoftmaxSampler(weight, phi),
        "tree with signs": SoftmaxSampler(weight, hrf.Trigonometric(DIM, n_projections=16)),
    }


@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_full_cross_entropy_when_all_classes_are_drawn(with_bias):
    hidden, targets, weight, bias = inputs()
    leaves = [hidden, weight, *([bias] if with_bias else [])]
    received = SampledSoftmaxLoss(UniformSampler(CLASSES), CLASSES)(hidden, targets, *leaves[1:])
    expected = full(hidden, targets, *leaves[1:])
    torch.testing.assert_close(received, expected, **ROUNDING)
    gradients = (torch.autograd.grad(loss, leaves) for loss in (received, expected))
    torch.testing.assert_close(*gradients, **ROUNDING)


class Fixed(Sampler):
    """Always the same classes, with made-up probabilities."""

    ids, q = torch.tensor([3, 7, 3, 0]), torch.tensor([0.2, 0.05, 0.2, 0.5], dtype=torch.float64)

    def _sample(self, queries, k, generator):
        shape = (len(queries), k)
        return Samples(self.ids.expand(shape), self.q.log().expand(shape))


def test_logits_are_corrected_and_hits_removed():
    """The formula, written out in numbers."""
    hidden, _, weight, _ = inputs()
    x, target = hidden[0, :1], torch.tensor([7])
    loss = SampledSoftmaxLoss(Fixed(CLASSES), 4)(x, target, weight)
    o = (x @ weight.T)[0].tolist()
    z = math.exp(o[7]) + 2 * math.exp(o[3]) / (4 * 0.2) + math.exp(o[0]) / (4 * 0.5)
    assert loss.item() == pytest.approx(math.log(z) - o[7], rel=1e-12)


def test_gradients_of_a_fixed_draw():
    hidden, targets, weight, bias = inputs()
    loss = SampledSoftmaxLoss(Fixed(CLASSES), 4, reduction="none")
    torch.autograd.gradcheck(lambda *leaves: loss(leaves[0], targets, *leaves[1:]), (hidden, weight, bias))


@pytest.mark.stat
@pytest.mark.parametrize("name", ["uniform", "log-uniform", "exact", "tree", "tree with signs"])
def test_partition_function_and_its_gradient_are_unbiased(name):
    """exp(loss) estimates Σ exp(o_c − o_t) without bias, and so does its gradient."""
    hidden, targets, weight, _ = inputs()
    n, x, target = 20_000, hidden[0, 0], targets[0, 0]
    loss = SampledSoftmaxLoss(samplers(weight)[name], 4, reduction="none")
    many = x.detach().expand(n, DIM).clone().requires_grad_()
    ratio = loss(many, target.expand(n), weight, generator=Generator().manual_seed(0)).exp()
    (gradients,) = torch.autograd.grad(ratio.sum(), many)
    exact = full(x[None], target[None], weight).exp()
    (exact_gradient,) = torch.autograd.grad(exact, x)
    for estimates, truth in ((ratio[:, None], exact), (gradients, exact_gradient)):
        error = (estimates.mean(0) - truth).abs()
        assert (error <= 5 * estimates.std(0) / math.sqrt(n)).all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_targets_do_not_count(reduction, training):
    hidden, targets, weight, bias = inputs()
    targets[1, 2] = targets[0, 0] = -7
    loss = SampledSoftmaxLoss(UniformSampler(CLASSES), CLASSES, ignore_index=-7, reduction=reduction)
    received = loss.train(training)(hidden, targets, weight, bias)
    expected = full(hidden, targets, weight, bias, ignore_index=-7, reduction=reduction)
    torch.testing.assert_close(received.flatten(), expected.flatten(), **ROUNDING)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_targets_ignored(reduction, sparse):
    """NaN for the mean, else 0, and gradients of 0 for all: as in PyTorch."""
    hidden, targets, weight, bias = inputs()
    targets, exactly = torch.full_like(targets, -100), {"rtol": 0, "atol": 0}
    for sampler in samplers(weight).values():
        loss = SampledSoftmaxLoss(sampler, 4, reduction=reduction, sparse=sparse)
        received = loss(hidden, targets, weight, bias)
        expected = full(hidden, targets, weight, bias, reduction=reduction)
        torch.testing.assert_close(received.flatten(), expected.flatten(), equal_nan=True, **exactly)
        mine, theirs = (torch.autograd.grad(u.sum(), [hidden, weight, bias]) for u in (received, expected))
        torch.testing.assert_close([u.to_dense() for u in mine], list(theirs), **exactly)


def test_sparse_gradients_are_those_of_drawn_rows():
    hidden, targets, weight, bias = inputs()
    sampler = UniformSampler(CLASSES)
    gradients = {}
    for sparse in (False, True):
        loss = SampledSoftmaxLoss(sampler, 3, sparse=sparse)
        value = loss(hidden, targets, weight, bias, generator=Generator().manual_seed(1))
        gradients[sparse] = torch.autograd.grad(value, [hidden, weight, bias])
    assert gradients[True][1].is_sparse
    for dense, other in zip(gradients[False], gradients[True], strict=True):
        torch.testing.assert_close(dense, other.to_dense() if other.is_sparse else other, **ROUNDING)


def test_the_generator_or_the_seed_decides():
    hidden, targets, weight, _ = inputs()
    loss = SampledSoftmaxLoss(UniformSampler(CLASSES), 3)
    expected = loss(hidden, targets, weight, generator=Generator().manual_seed(1))
    assert loss(hidden, targets, weight, seed=1).equal(expected)
    assert not loss(hidden, targets, weight, seed=2).equal(expected)
    for mode in (True, False):
        loss.train(mode)
        with pytest.raises(TypeError, match=r"generator is 0; expected a torch\.Generator"):
            loss(hidden, targets, weight, generator=0)
        with pytest.raises(ValueError, match="generator and seed are both given"):
            loss(hidden, targets, weight, generator=Generator(), seed=0)


def test_half_precision_losses_come_in_float32():
    hidden, targets, weight, _ = inputs()
    loss = SampledSoftmaxLoss(UniformSampler(CLASSES), CLASSES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = loss(hidden.float(), targets, weight.float())
    assert received.dtype == torch.float32
    # Logits of size 2 with 8 bits, in a mean of six.
    assert abs(received - full(hidden, targets, weight)) < 2**-6


def test_a_model_with_the_loss_can_be_copied_and_saved():
    hidden, targets, weight, _ = inputs()
    loss = SampledSoftmaxLoss(samplers(weight)["tree"], 4)
    other = SampledSoftmaxLoss(samplers(torch.zeros_like(weight))["tree"], 4)
    other.load_state_dict(loss.state_dict())
    values = [
        made(hidden, targets, weight, generator=Generator().manual_seed(0))
        for made in (loss, other, copy.deepcopy(loss))
    ]
    assert values[0].equal(values[1])
    assert values[0].equal(values[2])


def test_training_with_it_lowers_the_full_loss():
    """A softmax layer learns a rule; the sampler is handed new embeddings as they come."""
    weight = nn.Parameter(0.1 * torch.randn(60, 16))
    rule = torch.randn(60, 16)
    sampler = SoftmaxSampler(weight, hrf.Positive(16, n_projections=32))
    loss, optimizer = SampledSoftmaxLoss(sampler, 10, sparse=True), torch.optim.SparseAdam([weight], lr=0.1)
    for _ in range(80):
        targets = torch.randint(60, (64,))
        optimizer.zero_grad()
        loss(rule[targets], targets, weight).backward()
        changed = weight.grad.coalesce().indices()[0]
        optimizer.step()
        sampler.update_(changed, weight[changed])
    assert full(rule, torch.arange(60), weight) < 0.1 * math.log(60)


def test_errors_say_what_was_received():
    hidden, targets, weight, bias = inputs()
    sampler = UniformSampler(CLASSES)
    loss = SampledSoftmaxLoss(sampler, 3)
    beyond = targets.index_fill(0, torch.tensor(0), CLASSES)
    for call, error, says in (
        (
            lambda: SampledSoftmaxLoss(sampler, 13),
            ValueError,
            "k is 13; expected at most the number of classes",
        ),
        (lambda: SampledSoftmaxLoss(3, 3), TypeError, "sampler is of type int"),
        (lambda: SampledSoftmaxLoss(sampler, 3, reduction="max"), ValueError, "reduction is 'max'"),
        (lambda: loss(hidden, targets[:, 0], weight), ValueError, r"shapes \(2, 3, 5\) and \(2,\)"),
        (lambda: loss(hidden, targets, weight[1:]), ValueError, r"\(11, 5\); expected \(12, 5\)"),
        (lambda: loss(hidden, targets, weight, bias[:3]), ValueError, r"expected \(12, 5\) and \(12,\)"),
        (lambda: loss(hidden[:0], targets[:0], weight), ValueError, r"shape \(0, 3\); expected at least one"),
        (lambda: loss(hidden, beyond, weight), ValueError, "to 12; expected classes from 0 to 11"),
        (lambda: loss(hidden.detach().numpy(), targets, weight), TypeError, "hidden is of type ndarray"),
        (lambda: loss(hidden, targets.numpy(), weight), TypeError, "targets is of type ndarray"),
        (lambda: loss(hidden, targets, weight.detach().numpy()), TypeError, "weight is of type ndarray"),
    ):
        with pytest.raises(error, match=says):
            call()
