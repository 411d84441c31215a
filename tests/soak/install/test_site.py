"""The documentation's site, built strictly: its pages hold what GitHub shows, load nothing from
elsewhere, fit on a phone, and can be searched."""

import functools
import http.server
import json
import os
import re
import shutil
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import pytest
from harness.jobs import install, shell
from harness.parsing import PACKAGES, PROJECT, ROOT
from markdown_it import MarkdownIt

sys.path.insert(0, str(ROOT / "scripts"))
import make_site

LOOK = r"""
import json, sys
from playwright.sync_api import sync_playwright

address, chromium, folder = sys.argv[1:4]
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
found, hits = [], 0
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for width in 1280, 420:
        for scheme in "light", "dark":
            page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
            page.on("console", lambda message: found.append(message.text))
            page.on("pageerror", lambda error: found.append(str(error)))
            own = ("data:", address)
            page.on("request", lambda r: r.url.startswith(own) or found.append(r.url))
            for name in sys.argv[4:]:
                page.goto(f"{address}/{name}")
                found += [f"{name} is too wide at {width}"] * (page.evaluate(TOO_WIDE) > 0)
                path = f"{folder}/{name.replace('/', '-')}-{width}-{scheme}.png"
                page.screenshot(path=path)
            page.close()
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{address}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("stall_timeout")
    page.wait_for_selector(".md-search-result__item")
    hits = page.locator(".md-search-result__item").count()
print(json.dumps([found, hits]))
"""
COUNTED = ("h1", "h2", "h3", "li", "table", "tr", "img", "pre")


class Counts(HTMLParser):
    """How often each of COUNTED begins within the article of a page."""

    def __init__(self, html):
        super().__init__()
        self.of = dict.fromkeys(COUNTED, 0)
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag in self.of:
            self.of[tag] += 1


@pytest.fixture(scope="module")
def site(forge, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install(*PROJECT["optional-dependencies"]["docs"], into=folder / "tools")
    make = (sys.executable, "scripts/make_site.py", folder / "site", "--repository", forge)
    shell(*make, PYTHONPATH=str(folder / "tools"), NO_MKDOCS_2_WARNING="1", wait_s=600)
    return folder / "site"


@pytest.mark.parametrize("file", [file for file in make_site.PAGES if file.endswith(".md")])
def test_a_page_holds_what_github_shows(file, site):
    """The referee reads GitHub's Markdown; the site's reader has other rules for lists and code."""
    html = (site / make_site.PAGES[file]).with_suffix(".html").read_text()
    (article,) = re.findall(r"<article.*?</article>", html, re.DOTALL)
    expected = MarkdownIt("gfm-like", {"linkify": False}).render((ROOT / file).read_text())
    assert Counts(article).of == Counts(expected).of


def test_every_public_name_is_in_the_reference(site):
    for page, module in make_site.REFERENCE.items():
        html = (site / page).with_suffix(".html").read_text()
        ids = set(re.findall(r'id="([\w.]+)"', html))
        assert {f"{module}.{name}" for name in make_site.names_of(module)} <= ids


def test_a_dead_anchor_is_an_error(forge, site, tmp_path):
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("docs", "scripts", "examples", "benchmarks", *PACKAGES):
        shutil.copytree(ROOT / name, tmp_path / name)
    page = tmp_path / "docs/search.md"
    page.write_text(page.read_text() + "\n[nowhere](running.md#nowhere)\n")
    make = (sys.executable, "scripts/make_site.py", tmp_path / "site", "--repository", forge)
    tools = site.parent / "tools"
    done = shell(*make, PYTHONPATH=str(tools), cwd=tmp_path, status=1, wait_s=600)
    assert "running.md#nowhere" in done.stderr


@pytest.mark.skipif(not shutil.which("chromium"), reason="apt install chromium")
def test_the_site_in_a_browser(site, tmp_path):
    install("playwright", into=tmp_path / "packages")
    screenshots = Path(os.environ.get("RINGBERT_SCREENSHOTS", tmp_path))
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        pages = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
        look = (sys.executable, "-c", LOOK, address, shutil.which("chromium"), screenshots, *pages)
        done = shell(*look, PYTHONPATH=str(tmp_path / "packages"), wait_s=900)
        server.shutdown()
    found, hits = json.loads(done.stdout)
    assert (found, hits > 0) == ([], True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
