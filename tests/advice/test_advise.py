from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import hrf
from hrf.cli import application
from hrf.files import read_array


def points(n: int, *, seed: int, scale: float = 0.3, dim: int = 5) -> torch.Tensor:
    return scale * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


EASY = points(120, seed=0), points(120, seed=1)


@pytest.fixture(scope="module")
def easy():
    return hrf.advise(*EASY, budget=64, n_redraws=3)


def test_same_seed_same_advice(easy):
    again = hrf.advise(*EASY, budget=64, n_redraws=3)
    assert [(c.name, c.error) for c in again.ranking] == [(c.name, c.error) for c in easy.ranking]
    assert torch.equal(again.best.estimate(*EASY), easy.best.estimate(*EASY))


def test_easy_data_gets_no_warning_and_hopeless_data_does(easy):
    assert easy.warning is None
    hopeless = hrf.advise(20 * EASY[0], 20 * EASY[1], budget=64, n_redraws=2)
    assert "no map is good enough" in str(hopeless.warning)


def test_every_candidate_keeps_the_budget(easy):
    assert all(candidate.width <= 64 for candidate in easy.ranking)
    assert {"trigonometric", "positive", "FAVOR++", "FAVOR#", "angular hybrid"} <= {
        c.name for c in easy.ranking
    }


def test_anisotropic_data_is_served_by_a_fitted_map():
    stretch = torch.tensor([4.0, 0.2, 0.2, 0.2, 0.2])
    advice = hrf.advise(EASY[0] * stretch, EASY[1] / stretch / 2, budget=64, n_redraws=3, objective="kernel")
    errors = {c.name: c.error for c in advice.ranking}
    assert advice.best is advice.ranking[0].feature_map
    assert advice.ranking[0].error < errors["positive"] / 2


def test_values_change_the_objective(easy):
    values = points(120, seed=2)
    advice = hrf.advise(*EASY, values, budget=64, n_redraws=2)
    assert advice.ranking[0].error != easy.ranking[0].error


@pytest.mark.parametrize(
    ("queries", "keys", "says"),
    [
        (EASY[0], EASY[1][:, :3], "3"),
        (EASY[0], EASY[1] / 0, "NaN|infinite|finite"),
        (EASY[0][:0], EASY[1], "0"),
    ],
)
def test_bad_data_is_refused_in_words(queries, keys, says):
    with pytest.raises(ValueError, match=says):
        hrf.advise(queries, keys)


def run(*arguments: str):
    return CliRunner().invoke(application(), ["advise", *arguments])


def test_the_command_writes_a_map_that_opens_and_a_page_of_its_own(tmp_path):
    for name, array in zip(("q.npy", "k.npy"), EASY, strict=True):
        np.save(tmp_path / name, array.numpy())
    result = run(
        str(tmp_path / "q.npy"), str(tmp_path / "k.npy"), "--budget", "64", "--out", str(tmp_path / "out")
    )
    assert result.exit_code == 0, result.output
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"advice.png", "advice.json", "best.safetensors", "report.html"}
    assert hrf.load(tmp_path / "out" / "best.safetensors").estimate(*EASY).shape == (120, 120)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert 'src="http' not in page
    assert json.loads((tmp_path / "out" / "advice.json").read_text(encoding="utf-8"))


def test_the_command_refuses_files_in_one_sentence(tmp_path):
    good = tmp_path / "q.npy"
    np.save(good, EASY[0].numpy())
    np.save(tmp_path / "narrow.npy", EASY[0][:, :2].numpy())
    np.save(tmp_path / "nan.npy", np.full((120, 5), np.nan, dtype=np.float32))
    (tmp_path / "ragged.csv").write_text("1,2,3\n4,5\n")
    (tmp_path / "empty.csv").write_text("")
    for name in ("missing.npy", "narrow.npy", "nan.npy", "ragged.csv", "empty.csv"):
        result = run(str(good), str(tmp_path / name), "--out", str(tmp_path / "out"))
        assert result.exit_code == 2, name
        assert "Traceback" not in result.output


def test_arrays_of_all_kinds_of_files(tmp_path):
    array = EASY[0]
    np.save(tmp_path / "a.npy", array.numpy())
    np.savez(tmp_path / "a.npz", q=array.numpy(), k=2 * array.numpy())
    save_file({"q": array, "k": 2 * array}, tmp_path / "a.safetensors")
    np.savetxt(tmp_path / "a.csv", array.numpy(), delimiter=",")
    for location in ("a.npy", "a.npz:q", "a.safetensors:q", "a.csv"):
        torch.testing.assert_close(read_array(str(tmp_path / location)).float(), array)
    with pytest.raises(ValueError, match="q"):
        read_array(str(tmp_path / "a.npz"))
