"""What somebody who looks at a page would see."""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, ViewportSize

PHONE: ViewportSize = {"width": 360, "height": 740}
PICTURES = "LEHR_PICTURES"  # a folder: where it is set, pictures are kept there for people
LEAST_CONTRAST = 4.5  # between text and what is behind it, by the accessibility guidelines of the web, level AA
LEAST_CONTRAST_OF_LINES = 3.0  # by the same guidelines, for what is not text

_CHARTS = """() => Object.fromEntries([...document.querySelectorAll(".js-plotly-plot")].map(chart => [chart.id,
  chart.data.map(line => line.visible === "legendonly" ? 0 : line.y.filter(value => value !== null).length)]))"""
_FAINT = """([text, lines]) => {
  const numbers = colour => { const n = colour.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = colour => [0.2126, 0.7152, 0.0722].reduce((sum, w, place) => sum + w * linear(colour[place] / 255), 0);
  const contrast = (one, other) => { const both = [light(one), light(other)];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05); };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    return [255, 255, 255, 1]; };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, words = walk.currentNode.textContent.trim();
    if (!words || !element.checkVisibility() || element.closest("script, style, svg, .plotly-notifier")) continue;
    const reached = contrast(numbers(getComputedStyle(element).color), behind(element));
    if (reached < text) found.push(words.slice(0, 40) + ": " + reached.toFixed(2));
  }
  const root = getComputedStyle(document.documentElement), shown = document.createElement("span");
  document.body.append(shown);
  const of = name => { shown.style.color = `var(${name})`; return numbers(getComputedStyle(shown).color); };
  if (root.getPropertyValue("--card"))  // lines, bars, and the frame around what has the keyboard
    for (const name of ["--ink", "--quiet", "--accent", "--second", "--third", "--fourth", "--fifth"])
      if (contrast(of(name), of("--card")) < lines) found.push(name);
  shown.remove();
  return found; }"""
# What a keyboard reaches, and how each of these is framed when it is reached.
_WATCH_FOCUS = """() => { window.reached = [];
  document.addEventListener("focusin", event => window.reached.push(
    [getComputedStyle(event.target).outlineStyle, event.target.tagName, event.target.textContent.slice(0, 40)]));
  return [...document.querySelectorAll("a[href], button, input, summary, [tabindex='0']")].filter(
    one => one.checkVisibility() && !one.disabled).length; }"""
_UNNAMED = """() => [...document.querySelectorAll("[role=img], [role=region], button, input")].filter(one =>
  !one.getAttribute("aria-label") && !one.textContent.trim() && !one.labels?.length).map(one => one.outerHTML)"""
_DRAWN = "() => !document.getElementById('charts') || document.documentElement.classList.contains('drawn')"
_STICKS_OUT = "() => document.documentElement.scrollWidth > window.innerWidth"
_HEADINGS = "() => [...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))"


def open_page(page: Page, text: str, folder: Path) -> Page:
    """The page, written to a file and opened from there, with all its charts drawn."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    page.goto(file.as_uri())
    return wait_until_drawn(page)


def wait_until_drawn(page: Page) -> Page:
    """The page, as soon as its charts are there: a browser unpacks the drawing library first."""
    page.wait_for_function(_DRAWN)
    return page


def charts(page: Page) -> dict[str, list[int]]:
    """How many points each line has, by the name of the chart's element. A line that is switched off has none."""
    found: dict[str, list[int]] = page.evaluate(_CHARTS)
    return found


def empty_charts(page: Page) -> list[str]:
    """The places for charts where nothing is drawn, or a line without a point is."""
    places: list[str] = page.evaluate("() => [...document.querySelectorAll('.chart')].map(place => place.id)")
    found = charts(page)
    return [place for place in places if not all(found.get(place, ())) or not found.get(place)]


def line_buttons(page: Page, chart: str) -> Locator:
    """The buttons that take the lines of a chart away and bring them back."""
    return page.locator(f".tools:has(+ #{chart}) button[aria-pressed]")


def sticks_out(page: Page) -> bool:
    """Whether one has to scroll sideways to see all of it."""
    return bool(page.evaluate(_STICKS_OUT))


def headings_skip_a_level(page: Page) -> bool:
    """Whether somebody who goes from heading to heading misses one."""
    return any(after > before + 1 for before, after in itertools.pairwise([0, *page.evaluate(_HEADINGS)]))


def faint(page: Page) -> list[str]:
    """The words and lines that stand out too little from what is behind them."""
    found: list[str] = page.evaluate(_FAINT, [LEAST_CONTRAST, LEAST_CONTRAST_OF_LINES])
    return found


def print_page(page: Page, name: str) -> bytes:
    """The page as a PDF, as it comes out of a printer."""
    made = page.pdf(format="A4", print_background=True)
    _keep(f"{name}.pdf", made)
    return made


def lightness(page: Page, name: str) -> int:
    """How light the page itself is, from 0 to 255. The whole page is pictured where pictures are kept."""
    taken = page.screenshot(full_page=PICTURES in os.environ)
    _keep(f"{name}.png", taken)
    return Image.open(io.BytesIO(taken)).convert("L").tobytes()[0]


def _keep(name: str, content: bytes) -> None:
    folder = os.environ.get(PICTURES)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_bytes(content)


def check_readable(page: Page, name: str) -> None:
    """Charts have data, a keyboard goes through, words stand out on light and dark, and a phone shows all of it."""
    assert empty_charts(page) == []
    assert not headings_skip_a_level(page)
    assert page.locator("html[lang=en]").count() == 1
    assert page.evaluate(_UNNAMED) == []
    stops: int = page.evaluate(_WATCH_FOCUS)
    for _ in range(stops + 1):  # each, and once around out of the page
        page.keyboard.press("Tab")
    reached = page.evaluate("() => window.reached")
    assert stops <= len(reached) <= stops + 1
    assert [one for one in reached if one[0] == "none"] == []
    for scheme, expected in (("light", range(200, 256)), ("dark", range(60))):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert faint(page) == []
        assert lightness(page, f"{name}-{scheme}") in expected
    page.set_viewport_size(PHONE)
    page.wait_for_function(f"() => !({_STICKS_OUT})()")  # charts take a moment to follow
    assert empty_charts(page) == []
    lightness(page, f"{name}-phone")


def check_lines_can_be_switched(page: Page, *, chart: str) -> None:
    """A key on a line's name takes the line away, and that line alone; another one brings it back."""
    before, button = charts(page), line_buttons(page, chart).last
    button.press("Enter")
    after = charts(page)
    assert button.get_attribute("aria-pressed") == "false"
    assert (after[chart][-1], after[chart].count(0)) == (0, 1)
    assert {**after, chart: []} == {**before, chart: []}
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert charts(page) == before
