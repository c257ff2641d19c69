"""Hybrids: where they are exact, what they share, and which parts they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

import hrf
from features.registry import CENTERS, X, Y
from hrf import coefficients

SPHERE = 0.9 * normalize(Y, dim=-1)


def bases(**arguments) -> list[hrf.FeatureMap]:
    return [base(4, n_projections=3, **arguments) for base in (hrf.Positive, hrf.Trigonometric)]


def angular(n: int = 5, **arguments) -> coefficients.Angular:
    return coefficients.Angular(4, n_projections=n, **arguments)


def exact_at(phi: hrf.FeatureMap, x: torch.Tensor, y: torch.Tensor) -> bool:
    kernel = hrf.kernels.softmax(x, y).diagonal()
    close = (phi.double().estimate(x, y).diagonal() / kernel - 1).abs() <= 1e-13
    return bool(close.all() and (phi.mse(x, y).diagonal() <= 1e-25 * kernel.square()).all())


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("projection", ["iid", "orthogonal"])
def test_angular_hybrid_is_exact_at_both_ends_of_a_sphere(share, projection):
    phi = hrf.AngularHybrid(
        4, n_projections=3, n_coefficient_projections=2, share_projections=share, projection=projection
    )
    assert exact_at(phi, SPHERE, SPHERE)
    assert exact_at(phi, SPHERE, -SPHERE)
    assert not exact_at(phi, SPHERE, SPHERE.flip(0))


def test_gaussian_hybrid_is_exact_at_one_end_and_the_nested_one_at_both():
    phi = hrf.GaussianHybrid(4, n_projections=3, n_coefficient_projections=2, sigma=1.3, radius=0.9)
    assert exact_at(phi, SPHERE, SPHERE)
    assert not exact_at(phi, SPHERE, -SPHERE)
    positive = coefficients.Gaussian.bipolar(hrf.Positive(4, n_projections=2), sigma=1.3, radius=0.9)
    other_end = hrf.Hybrid(bases(), [positive])
    assert not exact_at(other_end, SPHERE, SPHERE)
    assert exact_at(other_end, SPHERE, -SPHERE)
    inner = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2)
    # The λ of σx = y·σ lives on the sphere of radius σr, where the inner hybrid is exact at both ends.
    nested = hrf.Hybrid(bases(), [coefficients.Gaussian.bipolar(inner, sigma=1.3, radius=0.9)])
    assert exact_at(nested, SPHERE, SPHERE)
    assert exact_at(nested, SPHERE, -SPHERE)


class Constant(coefficients.Coefficient):
    """λ ≡ constant."""

    dim, heads, feature_dim = 4, None, 1

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def scaled(self, x, side):
        zeros = x.new_zeros(*x.shape[:-1], 1)
        return hrf.Features(zeros, zeros)


@pytest.mark.parametrize(("constant", "kept"), [(1.0, 0), (0.0, 1)])
def test_constant_coefficients_give_back_a_base(constant, kept):
    parts = bases()
    phi = hrf.Hybrid(parts, [Constant(constant)]).double()
    assert torch.equal(phi.estimate(X, Y), parts[kept].estimate(X, Y))
    torch.testing.assert_close(phi.queries(X) @ phi.keys(Y).mT, parts[kept].estimate(X, Y))


def test_weights_may_leave_the_unit_interval():
    """2K̂⁺⁺ − K̂^trig: the sign of 1 − 2 < 0 stands on the key side."""
    parts = bases()
    phi = hrf.Hybrid(parts, [Constant(2.0)]).double()
    expected = 2 * parts[0].estimate(X, Y) - parts[1].estimate(X, Y)
    torch.testing.assert_close(phi.estimate(X, Y), expected)
    torch.testing.assert_close(phi.queries(X) @ phi.keys(Y).mT, expected)


def test_width_of_the_composition_lemma():
    assert hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=5).feature_dim == 4 * 3 * (5 + 1)
    phi = hrf.Hybrid([*bases(), hrf.Positive(4, n_projections=2)], [angular(5), angular(7)])
    assert phi.constants == [0.5, 0.5, 0.0]
    assert phi.feature_dim == 6 * (1 + 5) + 6 * (1 + 7) + 4 * (5 + 7)  # no column for the constant 0


def test_shared_projections_are_one_object_and_stay_so():
    shared = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2)
    apart = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2, share_projections=False)
    assert shared.bases[0].projection is shared.bases[1].projection
    assert apart.bases[0].projection is not apart.bases[1].projection
    shared.redraw_().double()
    assert shared.bases[0].projection is shared.bases[1].projection
    assert shared.flops() == apart.flops() - 2 * 4 * 3


def test_estimate_keeps_digits_that_features_cancel():
    """At x = −y with norm 20 the trigonometric part is e^{800} larger and has weight zero."""
    x = 20 * normalize(Y, dim=-1)
    phi = hrf.AngularHybrid(4, n_projections=3, n_coefficient_projections=2).double()
    torch.testing.assert_close(
        phi.estimate(x, -x).diagonal(), hrf.kernels.softmax(x, -x).diagonal(), rtol=1e-11, atol=0
    )


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (
            lambda: hrf.Hybrid(bases(), []),
            ValueError,
            "the numbers of bases and coefficients are 2 and 0; expected two or more bases and one",
        ),
        (lambda: hrf.Hybrid(bases()[:1], []), ValueError, "are 1 and 0"),
        (lambda: hrf.Hybrid(bases(), [angular(), angular()]), ValueError, "coefficients are 2 and 2"),
        (
            lambda: hrf.Hybrid([bases()[0], hrf.Positive(5, n_projections=2)], [angular()]),
            ValueError,
            r"dim = \[4, 5, 4\]",
        ),
        (
            lambda: hrf.Hybrid([bases()[0], bases(heads=2)[1]], [angular()]),
            ValueError,
            r"heads = \[None, 2, None\]",
        ),
        (
            lambda: hrf.Hybrid([bases()[0], hrf.GaussianKernel(bases()[1])], [angular()]),
            ValueError,
            r"kernels \['softmax', 'gaussian'\]",
        ),
        (lambda: hrf.Hybrid(bases(), bases()[:1]), TypeError, "Positive is among the Coefficients"),
        (
            lambda: hrf.Hybrid([angular(), angular()], [angular()]),
            TypeError,
            "Angular is among the FeatureMaps",
        ),
        (
            lambda: hrf.AngularHybrid(4, n_projections=0, n_coefficient_projections=2),
            ValueError,
            "n_projections is 0",
        ),
        (
            lambda: hrf.AngularHybrid(4, n_projections=2, n_coefficient_projections=0),
            ValueError,
            "n_projections is 0",
        ),
        (
            lambda: hrf.GaussianHybrid(4, n_projections=2, n_coefficient_projections=2, sigma=0, radius=1),
            ValueError,
            "sigma is 0; expected a positive number",
        ),
        (
            lambda: coefficients.Gaussian(hrf.Positive(4, n_projections=2), scale=-1),
            ValueError,
            "scale is -1; expected a positive",
        ),
        (
            lambda: coefficients.Gaussian(hrf.Positive(4, n_projections=2), matrix=torch.ones(3)),
            ValueError,
            r"matrix has shape \(3,\); expected \(4,\) or \(4, 4\)",
        ),
        (
            lambda: coefficients.FromFeatureMap(hrf.Positive(4, n_projections=2), weight=0),
            ValueError,
            "weight not 0",
        ),
        (
            lambda: coefficients.Indicator(CENTERS, CENTERS[:, :3], pair=(0, 0)),
            ValueError,
            r"shapes \(2, 4\) and \(2, 3\)",
        ),
        (
            lambda: coefficients.Indicator(CENTERS, CENTERS, pair=(0, 2)),
            ValueError,
            r"pair is \(0, 2\); expected indices below 2 and 2",
        ),
        (
            lambda: hrf.GaussianKernel(angular()),
            TypeError,
            "feature_map is of type Angular; expected a FeatureMap",
        ),
        (lambda: coefficients.FromFeatureMap(angular()), TypeError, "feature_map is of type Angular"),
        (
            lambda: coefficients.Gaussian(hrf.Positive(4, n_projections=2), scale=torch.inf),
            ValueError,
            "scale is inf; expected a positive number",
        ),
        (
            lambda: coefficients.Gaussian.bipolar(hrf.Positive(4, n_projections=2), sigma=1e-170, radius=1.0),
            ValueError,
            "sigma · radius is 1e-170: too small",
        ),
        (
            lambda: coefficients.Gaussian(hrf.Positive(4, n_projections=2, heads=3), matrix=torch.ones(4)),
            ValueError,
            r"matrix has shape \(4,\); expected \(3, 4\) or \(3, 4, 4\)",
        ),
        (
            lambda: hrf.GaussianKernel(hrf.GaussianKernel(bases()[0])),
            ValueError,
            "estimates the gaussian kernel; expected a softmax-kernel map",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_in_words(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_coefficients_need_projections_of_their_own():
    omega = hrf.Projections("iid", 3, 4)
    with pytest.raises(ValueError, match="shares projections with a base"):
        hrf.Hybrid(bases(projection=omega), [angular(3, projection=omega)])


@pytest.mark.parametrize("projection", hrf.projections.KINDS)
@pytest.mark.parametrize("n", [5, 9])
def test_draws_from_equal_seeds_are_refused(projection, n):
    """With n = 9 rows the coefficient has more blocks than the base, but starts with the same direction."""
    seeded = [torch.Generator().manual_seed(0) for _ in range(2)]
    omega = hrf.Projections(projection, 5, 4, generator=seeded[0])
    parts = [base(4, n_projections=5, projection=omega) for base in (hrf.Positive, hrf.Trigonometric)]
    same = angular(n, projection=projection, generator=seeded[1])
    if projection == "hadamard" and n == 9:
        return  # it has few directions, so only whole draws are compared
    with pytest.raises(ValueError, match="drawn from equal seeds"):
        hrf.Hybrid(parts, [same])


def test_a_biased_coefficient_does_not_bias_a_hybrid():
    assert hrf.Hybrid(bases(), [angular(projection="hadamard")]).unbiased
    assert not hrf.Hybrid(bases(projection="hadamard"), [angular()]).unbiased


def test_products_of_features_and_coefficients_are_kept_in_range():
    """e^{50} of the base times e^{50} of the coefficient: each fits float32, the product does not."""
    phi = hrf.Hybrid(bases(), [coefficients.FromFeatureMap(hrf.Trigonometric(4, n_projections=2))])
    with pytest.raises(OverflowError, match=r"which torch\.float32 cannot hold"):
        phi.queries(torch.full((2, 4), 5.0))


def test_closed_form_names_what_is_not_known():
    omega = hrf.Projections("iid", 3, 4)
    shared = [hrf.OptimalPositive(4, n_projections=3, projection=omega), bases(projection=omega)[1]]
    with pytest.raises(NotImplementedError, match="OptimalPositive and Trigonometric that share"):
        hrf.Hybrid(shared, [angular()]).mse(X, Y)
    tau = hrf.Projections("iid", 5, 4)
    three = [*bases(), bases()[0]]
    with pytest.raises(NotImplementedError, match="coefficients share"):
        hrf.Hybrid(three, [angular(5, projection=tau), angular(5, projection=tau)]).mse(X, Y)
