import json
import os
import re
import shutil
import sys
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from matplotlib.figure import Figure
from typer.testing import CliRunner

import made_up
import made_up_speech
from hrf import cli
from hrf_paper import datasets, runner
from hrf_paper.experiments import lambda_estimates, registry, speech_measure
from hrf_paper.experiments.registry import EXPERIMENTS

TINY = replace(lambda_estimates.EXPERIMENT.quick, dim=3, n_projections=(1, 2), draws=20, angles=4)


def run(*arguments: str):
    return CliRunner().invoke(cli.application(), ["reproduce", *arguments])


def stored(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def boston(tmp_path_factory):
    place = tmp_path_factory.mktemp("data")
    rows = torch.rand(60, 14, generator=torch.Generator().manual_seed(0)).tolist()
    (place / "boston-housing").mkdir()
    text = "\n".join(["60,13", "names", *(",".join(map(str, row)) for row in rows)])
    (place / "boston-housing" / "boston_house_prices.csv").write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def everything(tmp_path_factory, boston):
    """Run all experiments with quick settings, or smaller ones, on made-up data."""
    out = tmp_path_factory.mktemp("all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HRF_DATA", str(boston))
        patch.setenv("HRF_CHECKPOINTS", str(tmp_path_factory.mktemp("checkpoints")))
        for name in ("penn_treebank", "wikitext2"):
            patch.setattr(datasets, name, partial(made_up.corpus, 200))
        patch.setattr(speech_measure, "an4", made_up_speech.corpus)
        for name, experiment in EXPERIMENTS.items():
            patch.setitem(EXPERIMENTS, name, made_up.smaller(experiment))
        result = run("all", "--quick", "--out", str(out))
        assert result.exit_code == 0, result.output
        yield result, out


@pytest.fixture
def tiny(monkeypatch):
    """Return one experiment that takes a moment."""
    experiment = replace(lambda_estimates.EXPERIMENT, quick=TINY, figure=lambda *_: Figure())
    monkeypatch.setitem(registry.EXPERIMENTS, "lambda", experiment)
    return experiment


@pytest.mark.slow
def test_all_write_numbers_a_figure_and_a_page(everything):
    result, out = everything
    assert result.stderr == ""
    expected = {f"{name}.{kind}" for name in EXPERIMENTS for kind in ("json", "png", "html")}
    assert {path.name for path in out.iterdir()} == expected | {"index.html"}
    assert all(str(out / name) in result.stdout.replace("\n", "") for name in expected)
    for name, experiment in EXPERIMENTS.items():
        data = stored(out / f"{name}.json")
        assert data["settings"] == json.loads(json.dumps(asdict(experiment.quick)))
        assert data["command"] == f"hrf reproduce {name} --quick"
        assert list(data) == [
            "experiment", "title", "source", "command", "settings", "versions", "claims", "results", "timings",
        ]  # fmt: skip
        picture = (out / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 300_000
        tables = experiment.all_tables(experiment.quick, runner.stored_results(data))
        assert all(len(row) == len(table.header) for table in tables for row in table.rows)


@pytest.mark.slow
def test_pages_show_every_claim_beside_the_papers(everything):
    _, out = everything
    index, total = (out / "index.html").read_text(encoding="utf-8"), 0
    for name in EXPERIMENTS:
        data = stored(out / f"{name}.json")
        page = (out / f"{name}.html").read_text(encoding="utf-8")
        assert "://" not in page
        assert page.count("data:image/png;base64,") == 1
        claims = data["claims"] + data["timings"]["claims"]
        total += len(claims)
        assert len(claims) >= 3
        assert page.count('<td class="verdict" ') == len(claims)
        assert f'<a href="{name}.html">' in index
        assert all(claim["sentence"].endswith(".") and claim["paper"] and claim["ours"] for claim in claims)
    assert index.count('<td class="verdict" ') == total


@pytest.mark.slow
def test_a_seed_gives_one_file(everything, tmp_path):
    _, out = everything
    names = ["mse-surface", "pointwise", "cost"]
    assert run(*names, "--quick", "--out", str(tmp_path)).exit_code == 0
    for name in names:
        first, second = stored(out / f"{name}.json"), stored(tmp_path / f"{name}.json")
        assert first.pop("timings").keys() == second.pop("timings").keys()
        assert first == second
    assert "seconds" not in json.dumps(first)


def test_another_seed_gives_other_draws(tiny, tmp_path):
    files = []
    for seed in ("0", "1"):
        assert run("lambda", "--quick", "--seed", seed, "--out", str(tmp_path)).exit_code == 0
        files.append(stored(tmp_path / "lambda.json"))
    assert files[1]["settings"]["seed"] == 1
    assert files[1]["command"] == "hrf reproduce lambda --quick --seed 1"
    key = "angular, n = 2, iid"
    assert files[0]["results"][key]["mean"]["exact"] == files[1]["results"][key]["mean"]["exact"]
    assert files[0]["results"][key]["mean"]["seen"] != files[1]["results"][key]["mean"]["seen"]


def test_full_settings_are_larger_than_the_default(tiny, tmp_path, monkeypatch):
    scaled = replace(tiny, full=replace(TINY, angles=8), scaled=TINY, quick=replace(TINY, angles=2))
    monkeypatch.setitem(registry.EXPERIMENTS, "lambda", scaled)
    for options, angles in (([], 4), (["--full"], 8), (["--quick"], 2)):
        assert run("lambda", *options, "--out", str(tmp_path)).exit_code == 0
        data = stored(tmp_path / "lambda.json")
        assert data["settings"]["angles"] == angles
        assert data["command"] == " ".join(["hrf reproduce lambda", *options])
    result = run("lambda", "--quick", "--full", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == "hrf: both quick and full settings are asked for; expected one of them at most\n"


def interrupted(experiment, after: int, monkeypatch) -> list[str]:
    """Return the list of finished parts of the experiment; Ctrl-C comes once ``after`` parts are finished."""
    done = []

    def counted(name, part):
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(name)
        return part()

    def parts(settings):
        return {name: partial(counted, name, part) for name, part in experiment.parts(settings).items()}

    monkeypatch.setitem(registry.EXPERIMENTS, "lambda", replace(experiment, parts=parts))
    return done


def test_a_run_resumes_after_ctrl_c(tiny, tmp_path, monkeypatch):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert run("lambda", "--quick", "--out", str(whole)).exit_code == 0
    done = interrupted(tiny, 2, monkeypatch)
    assert run("lambda", "--quick", "--out", str(resumed)).exit_code == 130
    assert [path.name for path in resumed.iterdir()] == [".parts"]
    assert len(done) == 2
    everything = interrupted(tiny, 100, monkeypatch)
    assert run("lambda", "--quick", "--seed", "1", "--out", str(resumed)).exit_code == 0
    assert everything == list(tiny.parts(TINY))  # parts of other settings are not reused
    assert (resumed / ".parts").exists()  # and stay
    rest = interrupted(tiny, 100, monkeypatch)
    assert run("lambda", "--quick", "--out", str(resumed)).exit_code == 0
    assert [*done, *rest] == list(tiny.parts(TINY))
    assert not (resumed / ".parts").exists()
    files = [stored(place / "lambda.json") for place in (whole, resumed)]
    assert files[0]["results"] == files[1]["results"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "hrf: there is no experiment 'nothing'; expected all, or some of "),
        ([], "hrf: no experiment is named; expected all, or some of "),
    ],
)
def test_wrong_names_get_one_sentence(arguments, sentence, tmp_path):
    result = run(*arguments, "--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{sentence}{', '.join(EXPERIMENTS)}\n"
    assert not (tmp_path / "out").exists()


def test_an_unusable_directory_is_refused_before_the_work(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    done = interrupted(tiny, 0, monkeypatch)
    result = run("lambda", "--quick", "--out", str(tmp_path / "file"))
    assert (result.exit_code, result.stdout, done) == (2, "", [])
    assert result.stderr == f"hrf: cannot write {tmp_path / 'file'}: File exists\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused(tiny, tmp_path):
    tmp_path.chmod(0o500)
    result = run("lambda", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == f"hrf: cannot write {tmp_path}: Permission denied\n"


def test_missing_data_is_reported_before_the_work(tmp_path, monkeypatch):
    import sklearn.datasets

    def offline(**_):
        raise OSError("no route to host")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", offline)
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    result = run("all", "--quick", "--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"hrf: {tmp_path}/boston-housing/boston_house_prices.csv is not there and OpenML"
    )
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_named(tmp_path, monkeypatch, boston):
    shutil.copytree(boston, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "boston-housing" / "boston_house_prices.csv"
    path.write_text("2,13\nnames\n1,x,3\n", encoding="utf-8")
    monkeypatch.setenv("HRF_DATA", str(tmp_path))
    result = run("uci", "--quick", "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr == f"hrf: {path} cannot be read: could not convert string to float: 'x'\n"


def test_wine_without_scikit_learn_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = run("uci", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert re.match(r"hrf: the wine data need scikit-learn \(pip install scikit-learn\)\n$", result.stderr)


def test_clusters_without_scikit_learn_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    result = run("clustering", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr == "hrf: k-means needs scikit-learn: pip install 'hybrid-random-features[learn]'\n"


def test_list_names_all_and_help_has_examples():
    result = run("--list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in EXPERIMENTS)
    text = run("--help").stdout
    assert all(words in text for words in ("hrf reproduce angles", "hrf reproduce all --quick", "--full"))


def test_a_wrong_seed_is_refused():
    for seed in ("-1", "large"):
        result = run("cost", "--seed", seed)
        assert result.exit_code == 2
        assert "--seed" in result.stderr
