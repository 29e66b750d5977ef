"""The report in a headless Chromium: nothing complains, nothing is missing, a phone can show it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.browser import Page, browser_page, find_browser

PHONE = 390
DESKTOP = 1280


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    executable = find_browser()
    if executable is None:
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail("REQUIRE_BROWSER=1, but there is no chromium on the PATH")
        pytest.skip("no chromium on the PATH: the report is not tested in a browser")
    with browser_page(executable) as opened:
        yield opened


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_complains_and_nothing_is_fetched(page, reported, width, scheme):
    path = reported / "report/index.html"

    page.open(path, width, scheme=scheme)

    assert page.complaints() == []
    assert page.requested() == [path.resolve().as_uri()]


def test_every_image_is_decoded_and_has_a_size(page, reported):
    page.open(reported / "report/index.html", DESKTOP)
    unfold(page)

    images = page.evaluate(
        "Promise.all([...document.images].map(image => image.decode().then("
        "() => [image.naturalWidth, image.getBoundingClientRect().height], () => [0, 0])))"
    )

    assert len(images) == len(list((reported / "plots/figures").glob("*.svg")))
    assert all(width > 300 and height > 100 for width, height in images)


@pytest.mark.parametrize("width", [320, PHONE, 768, DESKTOP])
def test_the_page_never_scrolls_sideways(page, reported, width):
    page.open(reported / "report/index.html", width)
    unfold(page)

    assert page.evaluate("window.innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_wide_tables_scroll_inside_and_their_titles_stay(page, reported):
    page.open(reported / "report/index.html", PHONE)

    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
        ".map(box => [box.clientWidth, getComputedStyle(box).overflowX, box.tabIndex])"
    )
    assert len(wide) > 5
    assert all(shown <= PHONE and flow == "auto" and tab == 0 for shown, flow, tab in wide)
    titles = page.evaluate(
        "[...document.querySelectorAll('main > section > .scroll caption span')].map(title => "
        "{ title.closest('.scroll').scrollLeft = 9999; const box = title.getBoundingClientRect(); "
        "return [box.left, box.right] })"
    )
    assert titles
    assert all(left >= 0 and right <= PHONE for left, right in titles)


def test_text_is_large_enough_and_stands_out_on_a_phone(page, reported):
    for scheme in ("light", "dark"):
        page.open(reported / "report/index.html", PHONE, scheme=scheme)
        unfold(page)

        smallest = page.evaluate(
            "Math.min(...[...document.querySelectorAll('main *')].filter(part => "
            "[...part.childNodes].some(node => node.nodeType == 3 && node.data.trim())).map("
            "part => parseFloat(getComputedStyle(part).fontSize)))"
        )
        assert smallest >= 10
        contrast = page.evaluate(CONTRAST)
        assert contrast >= 4.5, scheme


def test_headings_go_down_one_level_at_a_time(page, reported):
    page.open(reported / "report/index.html", DESKTOP)

    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map(part => Number(part.tagName[1]))"
    )

    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def test_links_lead_to_their_sections(page, reported):
    page.open(reported / "report/index.html", DESKTOP)

    tops = page.evaluate(
        "[...document.querySelectorAll('nav a')].map(link => "
        "document.querySelector(link.hash).getBoundingClientRect().top)"
    )

    assert len(tops) == 10
    assert tops == sorted(tops)


def test_a_page_with_faults_would_be_caught(page, tmp_path):
    """What the tests above look for is really reported by the browser."""
    faulty = tmp_path / "faulty.html"
    faulty.write_text(
        "<!doctype html><body style='margin:0'><img src='missing.png'>"
        "<div style='width:900px'>wide</div><script>console.error('oh'); nowhere()</script>"
    )

    page.open(faulty, PHONE)

    complaints = "".join(page.complaints())
    assert "oh" in complaints
    assert "nowhere is not defined" in complaints
    assert "Network.loadingFailed" in complaints
    assert page.requested()[1:] == [(Path(tmp_path) / "missing.png").as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") > PHONE


# The smallest contrast of any text with the nearest background behind it (WCAG 2.2, 1.4.3).
CONTRAST = """
(() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = channels(colour).slice(0, 3).map(value => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = part => {
    for (; part; part = part.parentElement) {
      const colour = getComputedStyle(part).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('body *')].filter(part =>
    [...part.childNodes].some(node => node.nodeType == 3 && node.data.trim()));
  return Math.min(...texts.map(part => {
    const [low, high] = [luminance(getComputedStyle(part).color), luminance(behind(part))].sort(
      (a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
})()
"""
