"""The report in a real browser, Debian's chromium driven by playwright, which is installed for it:
no error, nothing loaded, no text over another, nothing wider than the screen, no text cut off at
the left of a chart, no head of a column broken, its values under the pointer; in light, dark, on a
phone and printed."""

import shutil
import sys

import pytest
from harness import classifier_runs as own
from harness.jobs import install, shell

LOOK = r"""
import json, sys
from playwright.sync_api import sync_playwright

OVERLAPS = '''() => [...document.querySelectorAll("svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")];
  const boxes = texts.map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1
  ).map(([two]) => `${one} over ${two}`));
})'''
CUT_OFF = '''() => [...document.querySelectorAll("svg")].flatMap(svg =>
  [...svg.querySelectorAll("text")].filter(text =>
    text.getBoundingClientRect().left < svg.getBoundingClientRect().left
  ).map(text => text.textContent))'''
POINTED_AT = '''() => {
  const chart = document.querySelector("svg");
  chart.scrollIntoView();
  const box = chart.getBoundingClientRect();
  const found = document.elementFromPoint(box.x + box.width * 0.6, box.y + box.height / 2);
  return found.querySelector("title")?.textContent ?? "";
}'''
BROKEN_HEADS = '''() => [...document.querySelectorAll("th:not(.long)")].filter(head => {
  const range = document.createRange();
  range.selectNodeContents(head);
  return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
}).map(head => head.textContent)'''
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
SCREENS = {
    "light": {"viewport": {"width": 1100, "height": 1400}},
    "dark": {"viewport": {"width": 1100, "height": 1400}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 420, "height": 900}},
}
found = []
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
    for name, screen in SCREENS.items():
        page = browser.new_page(**screen)
        page.on("console", lambda message: found.append(message.text))
        page.on("pageerror", lambda error: found.append(str(error)))
        page.on("request", lambda r: r.url.startswith("file:") or found.append(r.url))
        page.goto(f"file://{sys.argv[2]}")
        found += [f"{name}: {text}" for text in page.evaluate(OVERLAPS)]
        found += [f"{name}: {text} is cut off" for text in page.evaluate(CUT_OFF)]
        found += [f"{name}: {text} is broken" for text in page.evaluate(BROKEN_HEADS)]
        read = page.evaluate(POINTED_AT)
        found += [f"{name}: under the pointer is '{read}'"] * (not read.startswith("step "))
        found += [f"{name}: too wide"] * (page.evaluate(TOO_WIDE) > 0)
        page.screenshot(path=f"{sys.argv[3]}/{name}.png", full_page=True)
    page.emulate_media(media="print")
    page.pdf(path=f"{sys.argv[3]}/print.pdf")
print(json.dumps(found))
"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="apt install chromium")
def test_the_report_in_a_browser(tmp_path):
    packages = tmp_path / "packages"
    install("playwright", into=packages)
    data = own.write_data(tmp_path / "data")
    flags = (
        *own.model_flags(data),
        *own.own_files(data),
        *own.LEARN,
        "--num_train_steps=30",
        "--do_eval",
    )
    own.classify(tmp_path / "run", *flags, "--eval_steps=10", "--load_best_model_at_end")
    look = (
        sys.executable,
        "-c",
        LOOK,
        shutil.which("chromium"),
        tmp_path / "run/report.html",
        tmp_path,
    )
    assert shell(*look, PYTHONPATH=str(packages)).stdout == "[]\n"
    for name in ("light.png", "dark.png", "phone.png", "print.pdf"):
        assert (tmp_path / name).stat().st_size > 20_000
