"""The parts of the site: quoted sections, the gallery, and its list of pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.hooks.gallery import EXPERIMENTS, gallery
from docs.hooks.includes import expand
from hrf_paper.experiments.experiment import RULE

ROOT = Path(__file__).parent.parent
PAGES = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

CLAIM = {"sentence": "It is.", "matching": "", "matched": 1, "total": 2, "cases": "GPUs", "criterion": ""}
CLAIMS = [
    {"claim": "cheaper | faster", "paper": "8×", "ours": "7×", "verdict": "holds", "matching": "equal width"},
    {
        "claim": "always",
        "paper": "yes",
        "ours": "no",
        "verdict": "fails",
        "criterion": "within two deviations",
    },
    {"claim": "on GPUs", "paper": "-", "ours": "-", "verdict": "partly"},
]
CLAIMS[0] |= {"matched": 6, "total": 6, "cases": "sizes"}
CLAIMS[1] |= {"matched": 1, "total": 22, "cases": "printed numbers"}
RESULT = {
    "experiment": "cost",
    "title": "Cost of features",
    "claims": [CLAIM | claim for claim in CLAIMS],
    "timings": {"claims": []},
    "command": "hrf reproduce cost",
}


def test_sections_are_quoted_up_to_the_next_heading_with_paths_from_the_site():
    assert expand("{{ README.md # Which map for my data? }}").startswith("Fit every family")
    assert "performer-pytorch" not in expand("{{ README.md # Which map for my data? }}")
    start = expand("{{ README.md # Start }}")
    assert "# makes .venv" in start  # a comment in a fence is no heading
    assert "](install.md)" in start
    with pytest.raises(
        ValueError, match=r"README\.md has no heading 'Nothing'; expected one of hrf: softmax"
    ):
        expand("{{ README.md # Nothing }}")


def test_every_page_is_in_the_navigation_once():
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(PAGES)


def headings(page: Path) -> set[str]:
    """Anchors of a page, as Python-Markdown's toc makes them, and those that are given by hand."""
    text = re.sub(r"```.*?```", "", expand(page.read_text(encoding="utf-8")), flags=re.DOTALL)
    made = {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
    return made | set(re.findall(r"\{ #([\w-]+) \}", text))


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in sorted(PAGES))])
def test_links_between_pages_lead_somewhere(page):
    """mkdocs checks the site when it is built; this also covers README.md and needs no mkdocs."""
    path = ROOT / page
    for target, _, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)(#([\w-]+))?\)", path.read_text(encoding="utf-8")
    ):
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            assert anchor in headings(file), f"{target}#{anchor}"


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_gallery_without_results_says_what_is_missing(tmp_path):
    page = gallery(tmp_path)
    assert all(f"- `{name}`" in page for name in EXPERIMENTS)


def test_gallery_shows_each_claim_with_both_values(tmp_path):
    (tmp_path / "cost.json").write_text(json.dumps(RESULT), encoding="utf-8")
    (tmp_path / "new.json").write_text(json.dumps(RESULT | {"experiment": "new"}), encoding="utf-8")
    page, start = gallery(tmp_path), "| [cost](#cost) | **"
    counted = "✗ 1 of 22 printed numbers reproduced**{ .fails } (within two deviations)"
    for row in (
        f"{start}✓ 6 of 6 sizes reproduced**{{ .holds }} | cheaper \\| faster *At equal width.* | 8× | 7× |",
        f"{start}{counted} | always | yes | no |",
        f"{start}◦ 1 of 2 GPUs reproduced**{{ .open }} | on GPUs | - | - |",
    ):
        assert row in page
    assert RULE in page
    assert "](results/cost.png)" in page
    assert "[new](#new)" in page
    assert "- `uci`" in page


def test_a_result_without_its_keys_is_refused(tmp_path):
    claim = {key: value for key, value in RESULT["claims"][0].items() if key != "ours"}
    broken = RESULT | {"claims": [claim]}
    (tmp_path / "cost.json").write_text(json.dumps(broken), encoding="utf-8")
    with pytest.raises(ValueError, match=r"cost.json lacks claims\[0\].ours"):
        gallery(tmp_path)
