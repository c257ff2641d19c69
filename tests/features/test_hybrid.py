"""Hybrids and their coefficients: where they are exact, moments in closed form, and parts they refuse."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Generator
from torch.nn.functional import normalize

import hrf
from features.registry import CENTERS, COMPLEX_FULL, DIM, REAL_DIAGONAL, REAL_FULL, M, N, X, Y
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
    sizes = {"n_projections": 3, "n_coefficient_projections": 2}
    ends, sphere = (SPHERE, -SPHERE), {"sigma": 1.3, "radius": 0.9}
    # The λ of σx = y·σ lives on the sphere of radius σr, where the inner hybrid is exact at both ends.
    inner = {"one end": hrf.Positive(4, n_projections=2), "both": hrf.AngularHybrid(4, **sizes)}
    lam = {name: coefficients.Gaussian.bipolar(phi, **sphere) for name, phi in inner.items()}
    trigonometric = hrf.GaussianHybrid(4, **sizes, **sphere)
    assert [exact_at(trigonometric, SPHERE, y) for y in ends] == [True, False]
    assert [exact_at(hrf.Hybrid(bases(), [lam["one end"]]), SPHERE, y) for y in ends] == [False, True]
    assert [exact_at(hrf.Hybrid(bases(), [lam["both"]]), SPHERE, y) for y in ends] == [True, True]


class Constant(coefficients.Coefficient):
    """λ ≡ constant."""

    dim, heads, feature_dim = 4, None, 1

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def scaled(self, x, side):
        zeros = x.new_zeros(*x.shape[:-1], 1)
        return hrf.Features(zeros, zeros)


@pytest.mark.parametrize("constant", [0.0, 1.0, 2.0])
def test_constant_coefficients_give_back_a_base_or_leave_the_unit_interval(constant):
    """2K̂⁺⁺ − K̂^trig: the sign of 1 − 2 < 0 stands on the key side."""
    parts = bases()
    phi = hrf.Hybrid(parts, [Constant(constant)]).double()
    expected = constant * parts[0].estimate(X, Y) + (1 - constant) * parts[1].estimate(X, Y)
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


def positive(**arguments) -> hrf.Positive:
    return hrf.Positive(4, n_projections=2, **arguments)


def sized(n: int, m: int, **arguments) -> dict:
    return {"n_projections": n, "n_coefficient_projections": m, **arguments}


WRONG_VALUES = {
    "the numbers of bases and coefficients are 2 and 0": lambda: hrf.Hybrid(bases(), []),
    "are 1 and 0": lambda: hrf.Hybrid(bases()[:1], []),
    "coefficients are 2 and 2": lambda: hrf.Hybrid(bases(), [angular(), angular()]),
    r"dim = \[4, 5, 4\]": lambda: hrf.Hybrid([bases()[0], hrf.Positive(5, n_projections=2)], [angular()]),
    r"heads = \[None, 2, None\]": lambda: hrf.Hybrid([bases()[0], bases(heads=2)[1]], [angular()]),
    r"kernels \['softmax', 'gaussian'\]": lambda: hrf.Hybrid(
        [bases()[0], hrf.GaussianKernel(bases()[1])], [angular()]
    ),
    "n_projections is 0": lambda: hrf.AngularHybrid(4, **sized(0, 2)),
    "n_projections is 0; expected": lambda: hrf.AngularHybrid(4, **sized(2, 0)),
    "sigma is 0; expected a positive": lambda: hrf.GaussianHybrid(4, **sized(2, 2, sigma=0, radius=1)),
    "scale is -1; expected a positive": lambda: coefficients.Gaussian(positive(), scale=-1),
    "scale is inf; expected a positive": lambda: coefficients.Gaussian(positive(), scale=torch.inf),
    r"expected \(4,\) or \(4, 4\)": lambda: coefficients.Gaussian(positive(), matrix=torch.ones(3)),
    r"expected \(3, 4\) or": lambda: coefficients.Gaussian(positive(heads=3), matrix=torch.ones(4)),
    "1e-170: too small": lambda: coefficients.Gaussian.bipolar(positive(), sigma=1e-170, radius=1.0),
    "weight not 0": lambda: coefficients.FromFeatureMap(positive(), weight=0),
    r"shapes \(2, 4\) and \(2, 3\)": lambda: coefficients.Indicator(CENTERS, CENTERS[:, :3], pair=(0, 0)),
    "expected indices below 2 and 2": lambda: coefficients.Indicator(CENTERS, CENTERS, pair=(0, 2)),
    "estimates the gaussian kernel": lambda: hrf.GaussianKernel(hrf.GaussianKernel(bases()[0])),
}
WRONG_TYPES = {
    "Positive is among the Coefficients": lambda: hrf.Hybrid(bases(), bases()[:1]),
    "Angular is among the FeatureMaps": lambda: hrf.Hybrid([angular(), angular()], [angular()]),
    "is of type Angular; expected a FeatureMap": lambda: hrf.GaussianKernel(angular()),
    "feature_map is of type Angular": lambda: coefficients.FromFeatureMap(angular()),
}


@pytest.mark.parametrize("says", [*WRONG_VALUES, *WRONG_TYPES])
def test_parts_that_do_not_fit_are_refused_in_words(says):
    with pytest.raises(ValueError if says in WRONG_VALUES else TypeError, match=says):
        (WRONG_VALUES | WRONG_TYPES)[says]()


def test_coefficients_need_projections_of_their_own():
    omega = hrf.Projections("iid", 3, 4)
    with pytest.raises(ValueError, match="shares projections with a base"):
        hrf.Hybrid(bases(projection=omega), [angular(3, projection=omega)])


@pytest.mark.parametrize("projection", hrf.projections.KINDS)
def test_draws_from_equal_seeds_are_refused(projection):
    """With 9 rows the coefficient has more blocks than the base, but starts with the same direction."""
    omega = hrf.Projections(projection, 5, 4, seed=0)
    parts = [base(4, n_projections=5, projection=omega) for base in (hrf.Positive, hrf.Trigonometric)]
    # Hadamard matrices have few directions, so only whole draws are compared.
    same = angular(5 if projection == "hadamard" else 9, projection=projection, seed=0)
    with pytest.raises(ValueError, match="drawn from equal seeds"):
        hrf.Hybrid(parts, [same])


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


# Coefficients.


def test_coefficients_follow_their_definitions():
    x, y, ends = X[1:], Y, torch.tensor([0.0, 1.0], dtype=torch.float64)
    bipolar = coefficients.Gaussian.bipolar(hrf.Trigonometric(4, n_projections=2), sigma=2.0, radius=0.9)
    for sign, value in zip((1, -1), ends, strict=True):
        torch.testing.assert_close(bipolar.exact(SPHERE, sign * SPHERE).diagonal(), value.expand(4))
    inside = coefficients.Indicator(CENTERS, -CENTERS, pair=(0, 1))
    expected = (torch.cdist(x, CENTERS).argmin(-1) == 0)[:, None] & (torch.cdist(y, -CENTERS).argmin(-1) == 1)
    assert torch.equal(inside.estimate(x, y), expected.double())


COEFFICIENTS = {
    "angular": lambda **a: coefficients.Angular(4, n_projections=6, **a),
    "bipolar": lambda **a: coefficients.Gaussian.bipolar(
        hrf.Trigonometric(4, n_projections=6, **a), sigma=1.2, radius=0.9
    ),
    "from map": lambda **a: coefficients.FromFeatureMap(
        hrf.Positive(4, n_projections=6, **a), constant=0.3, weight=-0.5
    ),
}


@pytest.mark.stat
@pytest.mark.parametrize("projection", ["iid", "orthogonal"])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_features_and_moments_of_coefficients(name, projection):
    draws, make = 10_000, COEFFICIENTS[name]
    lam = make(projection=projection, heads=draws, seed=0).double()
    estimates = lam.estimate(X.unsqueeze(0), Y.unsqueeze(0))
    linear = lam.constant + lam.queries(X.unsqueeze(0)) @ lam.keys(Y.unsqueeze(0)).mT
    torch.testing.assert_close(estimates, linear, rtol=1e-12, atol=1e-12)
    moments = make(projection=projection).moments(X, Y)
    for values, expected in (
        (estimates, moments.mean),
        (estimates.square(), moments.square),
        ((1 - estimates).square(), moments.complement_square),
        (estimates * (1 - estimates), moments.cross),
    ):
        error = (values.mean(0) - expected.value()).abs()
        assert (error <= 5 * values.std(0) / draws**0.5 + 1e-13).all()


COUPLED = ("halton", "sobol", "simplex", "hadamard")


@pytest.mark.parametrize("kind", hrf.projections.KINDS)
def test_the_mean_is_known_whatever_the_projections(kind):
    common = {"n_projections": N, "projection": kind}
    x, y = X[1:], Y
    cosine = (x @ y.mT) / (x.norm(dim=-1)[:, None] * y.norm(dim=-1))
    angular = coefficients.Angular(DIM, **common)
    torch.testing.assert_close(angular.exact(x, y), cosine.arccos() / math.pi)
    gaussian = coefficients.Gaussian(hrf.Positive(DIM, **common), scale=1.5)
    torch.testing.assert_close(gaussian.exact(x, y), (-(torch.cdist(x, -y) ** 2) / (2 * 1.5**2)).exp())
    affine = coefficients.FromFeatureMap(hrf.Positive(DIM, **common), constant=0.3, weight=-0.5)
    torch.testing.assert_close(affine.exact(x, y), 0.3 - 0.5 * (x @ y.mT).exp())


@pytest.mark.parametrize("kind", COUPLED)
def test_the_other_moments_are_not_and_say_so(kind):
    inner = hrf.Positive(DIM, n_projections=N, projection=kind)
    with pytest.raises(NotImplementedError, match=f"Angular with '{kind}' projections"):
        angular(projection=kind).moments(X, Y)
    with pytest.raises(NotImplementedError, match=f"Positive with '{kind}' projections"):
        coefficients.FromFeatureMap(inner).moments(X, Y)


def test_a_coefficient_without_closed_forms_says_so():
    class Unknown(coefficients.Coefficient):
        dim, heads, feature_dim = DIM, None, 1

    with pytest.raises(NotImplementedError, match="mean of Unknown"):
        Unknown().exact(X, Y)
    with pytest.raises(NotImplementedError, match="moments of Unknown"):
        Unknown().moments(X, Y)


@pytest.mark.parametrize("norm", [1.0, 30.0, 100.0])
def test_the_mse_of_a_hybrid_whose_coefficient_overflows_is_that_of_the_lemma(norm):
    """λ is a Gaussian kernel estimated with positive features: its variance reaches e^20000."""
    common = {"projection": "iid"}
    inner = hrf.Positive(DIM, n_projections=N, **common)
    bases = [base(DIM, n_projections=M, **common) for base in (hrf.Positive, hrf.Trigonometric)]
    phi = hrf.Hybrid(bases, [coefficients.Gaussian(inner, matrix=-torch.ones(DIM))]).double()
    x, y = (norm * torch.nn.functional.normalize(u[1:3], dim=-1) for u in (X, Y))
    log_mse = phi.log_mse(x, y)
    for i, u in enumerate(x.tolist()):
        for j, v in enumerate(y.tolist()):
            expected = float(mpmath.log(_mse(u, v)))
            assert math.isclose(log_mse[i, j].item(), expected, rel_tol=1e-12, abs_tol=1e-12)


def _mse(x: list[float], y: list[float]) -> mpmath.mpf:
    """E λ̂² MSE⁺⁺ + E(1 − λ̂)² MSE^trig (paper, Theorem 3.1) with λ = exp(−‖x − y‖²/2), in many digits."""
    with mpmath.workdps(60):
        total, delta = (
            mpmath.fsum((mpmath.mpf(a) + s * mpmath.mpf(b)) ** 2 for a, b in zip(x, y, strict=True))
            for s in (1, -1)
        )
        squared_kernel = mpmath.exp((total - delta) / 2)

        def variance(square: mpmath.mpf, rows: int) -> mpmath.mpf:
            return mpmath.exp(square) * (1 - mpmath.exp(-square)) ** 2 / (2 * rows)

        mean = mpmath.exp(-delta / 2)
        spread = mean**2 * variance(total, N)
        relative = (mean**2 + spread) * variance(total, M) + ((1 - mean) ** 2 + spread) * variance(delta, M)
        return squared_kernel * relative


# Exponential maps on the same ω.


DRAWS = 20_000

MATRICES = {"real": (REAL_DIAGONAL, REAL_FULL), "complex": (REAL_FULL, COMPLEX_FULL)}


def hybrid(matrices: str, antithetic: tuple[bool, bool], *, heads=None, share=True, **source) -> hrf.Hybrid:
    """Two exponential maps with different matrices, mixed by the angle."""
    omegas = [hrf.Projections(n_projections=M, dim=DIM, heads=heads, **source) for _ in range(2 - share)]
    bases = [
        hrf.Exponential(
            DIM,
            n_projections=M,
            matrix=a if heads is None else a.expand(heads, *a.shape),
            antithetic=flag,
            projection=omega,
            heads=heads,
        )
        for a, flag, omega in zip(MATRICES[matrices], antithetic, (omegas[0], omegas[-1]), strict=True)
    ]
    source["projection"] = source.pop("kind")
    lam = coefficients.Angular(DIM, n_projections=N, heads=heads, **source)
    return hrf.Hybrid(bases, [lam]).double()


@pytest.mark.stat
@pytest.mark.parametrize(
    ("matrices", "antithetic", "kind"),
    [
        ("real", (True, False), "iid"),
        ("real", (False, True), "orthogonal"),
        ("real", (False, False), "orthogonal"),
        ("complex", (True, True), "orthogonal"),
        ("complex", (False, True), "iid"),
        ("complex", (False, False), "iid"),
        ("complex", (True, False), "orthogonal"),
    ],
)
def test_two_matrices_on_the_same_rows_have_the_predicted_mse(matrices, antithetic, kind):
    many = hybrid(matrices, antithetic, kind=kind, heads=DRAWS, generator=Generator().manual_seed(1))
    squares = (many.estimate(X.unsqueeze(0), Y.unsqueeze(0)) - hrf.kernels.softmax(X, Y)).square()
    tolerance = 5 * squares.std(0) / math.sqrt(DRAWS) + 1e-13
    for share in (True, False):
        mse = hybrid(matrices, antithetic, kind=kind, share=share).mse(X, Y)
        # Without the covariance of the bases the prediction is wrong, so this test depends on it.
        assert ((squares.mean(0) - mse).abs() <= tolerance).all() == share
