import pytest

from hrf_paper.experiments.angles import EXPERIMENT, AnglesSettings, Curve, Curves, angle_text, sentences
from hrf_paper.experiments.experiment import run


def made(*curves: tuple[str, bool, list[float], list[float]]) -> Curves:
    """Curves on five angles, sampled at all of them."""
    angles = [0.0, 0.25, 0.5, 0.75, 1.0]
    built = [
        Curve(name, fitted, 8, 16, 1600 + k, exact, seen, [0.0] * 5)
        for k, (name, fitted, exact, seen) in enumerate(curves)
    ]
    return Curves(AnglesSettings(draws=1234), built, angles, angles)


RISING, FALLING, FLAT = [0.0, 0.1, 0.4, 0.9, 1.6], [1.7, 0.9, 0.5, 0.1, 0.0], [0.3] * 5


def test_sentences_about_a_fitted_winner():
    result = made(
        ("one hybrid", False, RISING, RISING), ("two", False, FALLING, FALLING), ("three", True, FLAT, FLAT)
    )
    maxima, ranges, draws = sentences(result)
    assert maxima == (
        "Three has the smallest maximal error, 0.300 at θ=0, but it was fitted to these very pairs; of the "
        "estimators that see no data, the one hybrid has the smallest, 1.60 at θ=π, with 1,600 FLOPs per "
        "vector; two follows with 1.70 and 1,601."
    )
    assert ranges == (
        "The smallest error by angle: the one hybrid from 0 to 0.38π, three from 0.38π to 0.62π, "
        "two from 0.62π to π."
    )
    assert draws == "The errors seen in 1,234 draws lie within 0% of the exact errors."


def test_sentences_about_a_winner_everywhere_and_a_tie():
    bent = [0.3, 0.4, 0.4, 0.4, 0.3]
    result = made(("one", False, FLAT, FLAT), ("two", False, bent, FLAT), ("three", False, FLAT, FLAT))
    maxima, ranges, draws = sentences(result)
    assert maxima == (
        "One has the smallest maximal error, 0.300 at θ=0, with 1,600 FLOPs per vector; "
        "three has the same and 1,602."
    )
    assert ranges == "One has the smallest error at every angle between 0 and π."
    assert "two at θ=0.25π looks 75% as large as it is" in draws


def test_an_error_of_zero_is_no_miss():
    result = made(("one", False, RISING, RISING), ("two", False, FALLING, [1.7, 0.9, 0.6, 0.1, 1e-16]))
    assert sentences(result)[2] == "The errors seen in 1,234 draws lie within 20% of the exact errors."


@pytest.mark.parametrize(("share", "text"), [(0.0, "0"), (0.1875, "0.19π"), (0.5, "0.50π"), (1.0, "π")])
def test_angle_text(share, text):
    assert angle_text(share) == text


@pytest.fixture(scope="module")
def judged():
    settings = AnglesSettings(radius=1.0, dim=3, features=68, draws=50)
    results = run(EXPERIMENT.parts(settings))
    return settings, results, EXPERIMENT.claims(settings, results)


def test_claims_are_judged_by_their_cases(judged):
    _, results, (ends, smallest, ranges, draws) = judged
    assert (ends.verdict, ends.matched, ends.total) == ("holds", 6, 6)
    rivals = ("trigonometric", "FAVOR+", "Gaussian hybrid")
    largest = {name: max(part["exact"]) for name, part in results.items()}
    assert smallest.matched == sum(largest["angular hybrid"] < largest[name] for name in rivals)
    assert smallest.total == 3
    assert ranges.verdict == "beyond"
    assert 0 < draws.matched <= draws.total == 7 * 17 - 7  # seven ends are exact, and have no ratio


def test_an_estimator_that_is_not_exact_at_its_end_is_counted(judged):
    settings, results, _ = judged
    wrong = results | {"angular hybrid": results["angular hybrid"] | {"exact": [0.1] * 161}}
    ends = EXPERIMENT.claims(settings, wrong)[0]
    assert (ends.verdict, ends.matched, ends.total) == ("partly", 4, 6)
    assert "angular hybrid: neither end" in ends.ours
