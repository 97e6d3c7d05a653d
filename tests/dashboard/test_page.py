"""The live page in headless Chromium: first screen, words, curves, buttons, keyboard, contrast, widths, no faults."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import msgspec
import numpy as np
import pytest

from tests.dashboard.browser import CHROMIUM, MISSING, Page, chromium
from tests.dashboard.played import Played, history, scene, status, worker
from tests.waiting import until
from tmrl_core.actor.rollout.pictures import jpeg
from tmrl_core.config import from_values
from tmrl_core.dashboard.serve import Dashboard
from tmrl_core.networking.protocol.pictures import Picture
from tmrl_core.networking.protocol.telemetry import Order, OrderKind

pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.skipif(not CHROMIUM, reason=MISSING)]

CONTRAST = """
(() => {
  const parse = text => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const linear = one => one / 255 <= .04045 ? one / 255 / 12.92 : ((one / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const behind = element => {
    const found = parse(getComputedStyle(element).backgroundColor);
    return found[3] > .99 ? found : behind(element.parentElement);
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !element.checkVisibility() || element.closest(":disabled, noscript, .hidden")) continue;
    const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
    const one = light(parse(isSvg ? style.fill : style.color));
    const two = light(behind(isSvg ? element.closest("section") : element));
    const ratio = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
    if (ratio < 4.5) bad.push([element.tagName, element.textContent.trim().slice(0, 40), ratio.toFixed(2)]);
  }
  return bad;
})()
"""

UNNAMED = """
[...document.querySelectorAll("button, input, select, summary, video, a, [role=region], " +
  "[tabindex='0'], dialog, table, figure svg, nav")]
  .filter(one => one.checkVisibility())
  .filter(one => !(one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length
    || one.querySelector("svg[aria-label]") || document.getElementById(one.getAttribute("aria-labelledby"))))
  .map(one => one.outerHTML.slice(0, 120))
"""

SHIFTS = """
window.shifts = [];
new PerformanceObserver(list => {
  for (const one of list.getEntries().filter(one => !one.hadRecentInput))
    window.shifts.push([one.value, one.sources.map(s => s.node?.id || s.node?.className || s.node?.nodeName)]);
}).observe({type: "layout-shift", buffered: true});
"""


class Shown:
    """A page in a browser, and the source that it shows."""

    def __init__(self, page: Page, source: Played, url: str) -> None:
        self.page = page
        self.source = source
        self.url = url

    def open(self, width: int = 1440, height: int = 900, *, dark: bool = False) -> float:
        """Open the page anew; return the seconds until its first screen is complete."""
        self.page.size(width, height, mobile=width < 500)
        self.page.dark(dark)
        began = time.monotonic()
        self.page.open(self.url)
        self.page.until("location.href.startsWith('http') && document.querySelector('#return-chart .line')")
        self.page.until("document.getElementById('verdict').textContent.trim()")
        return time.monotonic() - began

    def text(self, selector: str) -> str:
        return str(self.page.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def show(self, **values: Any) -> None:
        self.source.show(**values)


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chromium(Path(folder)) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS)
        yield page


@pytest.fixture
def shown(browser: Page) -> Iterator[Shown]:
    source = Played(may_order=True)
    source.show(scene=scene(), history=history(), status=status())
    browser.faults.clear()
    browser.requests.clear()
    with Dashboard(from_values({"dashboard": {"port": 0}}), source) as served:
        yield Shown(browser, source, served.url)
        browser.open("about:blank")
        assert browser.faults == []
        assert [
            one for one in browser.requests if not one.startswith((served.url, "about:", "data:", f"blob:{served.url}"))
        ] == []


def test_the_first_screen_answers_three_questions(shown: Shown) -> None:
    shown.open()
    assert shown.text("#run") == "pendulum_sac"
    assert shown.text("#state") == "training"
    assert shown.text("#steps") == "41,200"
    assert shown.text("#verdict") == "Yes, it rose and is steady now"
    assert shown.text("#wrong-answer") == "No"
    assert shown.text("#parts").startswith("✓ Server")
    assert shown.text("#workers tbody tr").split()[:3] == ["robot1", "✓", "collecting"]
    below = "['learning', 'wrong', 'alive'].map(id => document.getElementById(id).getBoundingClientRect().bottom)"
    assert max(shown.page.value(below)) <= 900
    big = "['verdict', 'wrong-answer'].map(id => parseFloat(getComputedStyle(document.getElementById(id)).fontSize))"
    assert min(shown.page.value(big)) >= 30


def test_it_is_at_most_a_second_behind_the_metrics(shown: Shown) -> None:
    shown.open()
    for steps in range(50_000, 50_005):
        shown.show(scene=scene(env_steps=steps, time_s=steps))
        assert shown.page.until(f"document.getElementById('steps').textContent === '{steps:,}'", 5) < 1.0


def test_a_fault_is_told_with_its_next_step(shown: Shown) -> None:
    shown.open()
    shown.show(status=status(trainer=False))
    shown.page.until("document.querySelector('#faults li')")
    assert shown.text("#wrong-answer") == "Yes: one thing"
    assert "No trainer is linked to the Server" in shown.text("#faults")
    assert "python -m tmrl_core --trainer" in shown.text("#faults")
    assert shown.page.value("document.title") == "✕ pendulum_sac"
    assert shown.text("#parts li:nth-child(2)").startswith("✕ Trainer")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1440, 360])
def test_contrast_names_and_widths(shown: Shown, width: int, dark: bool) -> None:
    workers = (worker(0, drops=3), worker(1, refused="another space"), worker(2, paused=True), worker(3))
    told = msgspec.structs.replace(scene(), workers=workers)
    shown.show(scene=told, status=status(4))
    shown.open(width, 780, dark=dark)
    shown.page.until("document.querySelectorAll('#faults li').length === 3")
    assert shown.page.value(CONTRAST) == []
    assert shown.page.value(UNNAMED) == []
    assert shown.page.value("document.documentElement.scrollWidth") <= width
    background = shown.page.value("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 300) == dark


@pytest.mark.parametrize(("width", "height"), [(1440, 800), (800, 1300), (360, 1500)])
def test_nothing_moves_when_values_come(shown: Shown, width: int, height: int) -> None:
    """Paint each state before the next one, the page without its script too: several at once hide a shift."""
    shown.show(scene=None, history=None, status=None)
    shown.page.size(width, height, mobile=width < 500)
    shown.page.hold("*/page.js")
    shown.page.open(shown.url)
    shown.page.release()
    for values, there in (
        ({}, "document.getElementById('state').textContent === 'no trainer'"),
        ({"history": history(30)}, "document.querySelector('#return-chart .line')"),
        ({"scene": scene(1), "status": status(1)}, "document.getElementById('steps').textContent === '41,200'"),
        (
            {"scene": scene(20, time_s=2.0), "history": history(300), "status": status(20)},
            "document.querySelectorAll('#workers tbody tr').length === 20",
        ),
        ({"status": status(20, trainer=False)}, "document.querySelector('#faults li')"),
    ):
        shown.show(**values)
        shown.page.until(there)
        shown.page.painted()
    assert shown.page.value("window.shifts") == []


def test_every_part_is_reached_by_keyboard(shown: Shown) -> None:
    shown.open()
    reached = [shown.page.tab() for _ in range(40)]
    for wanted in (
        *("Skip to what is wrong", "by steps", "by time", "return-chart", "faults", "Workers", "Pause robot1"),
        *("pause", "checkpoint", "ratio-value", "Set", "revoke-name", "Show the command", "Events", "Settings"),
    ):
        assert wanted in reached, reached
    visible = "getComputedStyle(document.activeElement).outlineStyle"
    assert shown.page.value(visible) == "solid"


def test_curves_tell_their_values_to_pointer_and_keyboard(shown: Shown) -> None:
    shown.open()
    box = shown.page.value(
        "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#return-chart svg').getBoundingClientRect())"
    )
    shown.page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] / 2, y=box[1] + box[3] / 2)
    assert "steps" in shown.text("#return-chart .tip")
    assert "evaluation" in shown.text("#return-chart .tip")
    shown.page.value("document.getElementById('return-chart').focus()")
    shown.page.key("End")
    assert shown.text("#return-chart .tip").startswith("41,000 steps, 30:30")
    shown.page.key("ArrowLeft")
    assert not shown.text("#return-chart .tip").startswith("41,000")
    shown.page.key("Escape")
    assert shown.page.value("document.querySelector('#return-chart .tip').hidden")
    assert "latest" in shown.page.value("document.querySelector('#return-chart svg').getAttribute('aria-label')")


def click(shown: Shown, selector: str) -> None:
    shown.page.value(f"document.querySelector({json.dumps(selector)}).click()")


def test_an_order_is_confirmed_sent_and_answered(shown: Shown) -> None:
    shown.open()
    click(shown, "#pause")
    assert shown.text("#confirm-text") == "Pause training? Samples are still received."
    click(shown, "#confirm-no")
    assert shown.source.orders == []
    click(shown, "#pause")
    click(shown, "#confirm-yes")
    until(lambda: shown.source.orders == [Order(kind="pause")])
    shown.page.until("document.getElementById('outcome').textContent === 'pause: done'")
    shown.page.until("document.getElementById('pause').textContent === 'Resume training'")
    assert "anna: pause: done" in shown.text("#order-list")
    click(shown, "#workers button")
    assert shown.text("#confirm-text") == "Pause robot1 at the end of its episode?"
    click(shown, "#confirm-yes")
    until(lambda: shown.source.orders[-1] == Order(kind="pause_worker", worker="robot1"))
    shown.page.value("document.getElementById('ratio-value').value = '0.5'")
    shown.page.value("document.getElementById('ratio').requestSubmit()")
    click(shown, "#confirm-yes")
    until(lambda: shown.source.orders[-1] == Order(kind="ratio", value=0.5))


def test_an_order_that_was_not_sent_is_told(shown: Shown) -> None:
    shown.source.refusal = "the Server is not reached"
    shown.open()
    click(shown, "#checkpoint")
    click(shown, "#confirm-yes")
    shown.page.until("document.getElementById('outcome').textContent === 'not sent: the Server is not reached'")
    shown.page.faults.clear()  # the browser reports the refusal too


def test_revoking_shows_the_command(shown: Shown) -> None:
    shown.open()
    shown.page.value("document.getElementById('revoke-name').value = 'robot1; rm'")
    shown.page.value("document.getElementById('revoke').requestSubmit()")
    assert shown.text("#confirm-command") == "python -m tmrl_core --credentials revoke 'robot1; rm'"
    assert shown.source.orders == []


def test_without_an_operator_there_are_no_buttons(shown: Shown) -> None:
    shown.source.may_order = False
    shown.open()
    assert shown.page.value("document.getElementById('orders').hidden")
    assert not shown.page.value("document.querySelector('#workers button').checkVisibility()")


def test_names_of_workers_are_text(shown: Shown) -> None:
    name = "<img src=x onerror=alert(1)>"
    shown.show(scene=msgspec.structs.replace(scene(), workers=(worker(0, name=name, drops=1),)))
    shown.open()
    assert shown.text("#workers td") == name
    assert name in shown.text("#faults")
    assert shown.page.value("document.images.length") == 0


def test_a_page_that_was_cut_off_says_so_and_comes_back(browser: Page) -> None:
    source = Played()
    source.show(scene=scene(), history=history(), status=status())
    with contextlib.ExitStack() as served:
        page = served.enter_context(Dashboard(from_values({"dashboard": {"port": 0}}), source))
        port = page.port
        shown = Shown(browser, source, page.url)
        shown.open()
        served.close()
        browser.until("document.getElementById('wrong-answer').textContent === 'Yes: one thing'")
        assert "live page" in shown.text("#faults") or "not reached" in shown.text("#faults")
        again = Played()
        again.show(scene=scene(env_steps=77, time_s=1.0), history=history(), status=status())
        served.enter_context(Dashboard(from_values({"dashboard": {"port": port}}), again))
        browser.until("document.getElementById('steps').textContent === '77'", 20)
        assert shown.text("#wrong-answer") == "No"
        browser.open("about:blank")
        browser.faults.clear()  # refused connections


def test_a_login_by_the_printed_link(browser: Page) -> None:
    source = Played()
    source.show(scene=scene(), history=history(), status=status())
    browser.faults.clear()
    with Dashboard(from_values({"dashboard": {"port": 0, "login": True}}), source) as page:
        browser.open(page.url)
        browser.until("location.pathname === '/login/' && document.getElementById('token')")
        assert browser.value(UNNAMED) == []
        browser.open("about:blank")
        browser.open(page.link)
        browser.until("location.pathname === '/' && document.querySelector('#return-chart .line')")
        assert browser.value("location.href") == page.url
        assert browser.value("document.cookie") == ""
        browser.value("document.querySelector('#logout').requestSubmit()")
        browser.until("location.pathname === '/login/'")
        browser.open("about:blank")
    assert browser.faults == []


def film(path: Path) -> bytes:
    """Return a video of one second."""
    writer = imageio_ffmpeg.write_frames(str(path), (64, 48), fps=10)
    writer.send(None)
    for number in range(10):
        writer.send(np.full((48, 64, 3), 20 * number, np.uint8))
    writer.close()
    return path.read_bytes()


def test_a_camera_and_a_video_are_asked_for_and_shown(shown: Shown, tmp_path: Path) -> None:
    frame = jpeg(np.full((48, 64, 3), 90, np.uint8))
    shown.open()
    shown.page.value("document.getElementById('look-worker').value = 'robot2'")
    kinds: tuple[OrderKind, ...] = ("camera", "video")
    for kind in kinds:
        click(shown, f"#look button[value={kind}]")
        until(partial(shown.source.orders.__contains__, Order(kind=kind, worker="robot2")))
        shown.page.until("document.getElementById('look-outcome').textContent === 'robot2 was asked'")
    assert shown.page.value("document.querySelector('#picture-list figure')") is None
    name = "<b>robot2"
    for number in (1, 2, 3):
        shown.show(pictures={(name, "camera"): Picture(name, "camera", number, frame, origin="robot2")})
        shown.page.until("document.querySelector('#picture-list img')?.naturalWidth === 64")
    assert shown.text("#picture-list figcaption").startswith("Camera of <b>robot2 · certificate robot2")
    video = film(tmp_path / "a.mp4")
    shown.show(pictures={(name, "video"): Picture(name, "video", 4, video, "evaluation-7.mp4")})
    shown.page.until("document.querySelector('#picture-list video')?.readyState > 1")
    assert shown.page.value("document.querySelector('#picture-list video').duration") == pytest.approx(1.0, abs=0.2)
    shown.show(pictures={(name, "camera"): Picture(name, "camera", 5, b"", "this worker has no camera")})
    shown.page.until("document.querySelector('#picture-list figcaption').textContent.includes('has no camera')")
    assert not shown.page.value("document.querySelector('#picture-list img').checkVisibility()")
    for width in (1440, 360):
        shown.page.size(width, 780, mobile=width < 500)
        assert shown.page.value("document.documentElement.scrollWidth") <= width
    assert shown.page.value(CONTRAST) == []
    assert shown.page.value(UNNAMED) == []


def test_a_hidden_page_fetches_no_camera(shown: Shown) -> None:
    shown.open()
    shown.page.value("Object.defineProperty(document, 'hidden', {value: true})")
    shown.show(pictures={("robot1", "camera"): Picture("robot1", "camera", 1, b"frame")})
    shown.show(scene=scene(env_steps=77, time_s=1.0))
    shown.page.until("document.getElementById('steps').textContent === '77'")
    assert not [one for one in shown.page.requests if "/pictures/" in one]


def test_all_settings_are_found_by_a_part_of_their_name(shown: Shown) -> None:
    every = {f"section{number}.key": str(number) for number in range(200)}
    shown.show(history=msgspec.structs.replace(history(), settings=every))
    shown.open()
    assert shown.page.value("document.querySelectorAll('#every-setting tbody tr').length") == 0
    click(shown, "#all-settings summary")
    shown.page.until("document.querySelectorAll('#every-setting tbody tr').length === 200")
    shown.page.value("document.getElementById('setting-filter').focus()")
    shown.page.call("Input.insertText", text="SECTION17.")
    shown.page.until("document.querySelectorAll('#every-setting tbody tr').length === 1")
    assert shown.text("#every-setting tbody tr").split() == ["section17.key", "17"]
    assert shown.page.value(CONTRAST) == []
