"""A browser without a window, which opens pages and writes what it made of them."""

import html.parser
import os
import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="no chromium; `make browser` installs it")

# Kept out of the page's own script: what hands do, as events.
DRIVER = """
const rows = document.querySelector('[data-part="rows"]');
const after = (work) => new Promise((done) => setTimeout(() => { work(); done(); }, 50));
const key = (name) => rows.dispatchEvent(new KeyboardEvent("keydown", { key: name, cancelable: true }));
// Without a window no frames are due; printing draws at once.
const draw = () => window.dispatchEvent(new Event("beforeprint"));
const ready = () => document.documentElement.dataset.state === "ready";
const wait = () => (ready() ? run().then(draw) : setTimeout(wait, 20));
"""


class Dom(html.parser.HTMLParser):
    """What a browser wrote of a document: attributes of elements by id or part, cells of tables, texts."""

    def __init__(self, text):
        super().__init__()
        self.root, self.sections, self.cells, self.parts, self.scripts = {}, {}, {}, {}, 0
        self._section, self._table, self._cell, self._part = None, None, None, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "html":
            self.root = attributes
        elif tag == "section":
            self.sections[attributes["id"]] = attributes
            self._section = attributes["id"]
        elif tag == "table":
            self._table = self.cells.setdefault((self._section, attributes["data-table"]), [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag == "td":
            self._cell = [attributes.get("data-v"), ""]
        elif tag == "script":
            self.scripts += 1
        if "data-part" in attributes:
            self._part = attributes["data-part"]
            self.parts[self._part] = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[1] += data
        if self._part:
            self.parts[self._part] += data

    def handle_endtag(self, tag):
        if tag == "td":
            self._table[-1].append(self._cell)
            self._cell = None
        elif tag == "table":
            self._table = None


def opener(home):
    """Return what opens a page and returns the document after its script has run; ``home`` is its folder."""

    def opened(path, drive=None):
        if drive is not None:
            text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
            script = f"{DRIVER}\nasync function run() {{ {drive} }}\nwait();"
            path = path.with_name("driven.html")
            path.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
        done = subprocess.run(
            [
                BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--user-data-dir={home / 'profile'}", "--enable-logging=stderr",
                "--virtual-time-budget=20000", "--window-size=1280,1000", "--dump-dom", path.as_uri(),
            ],
            capture_output=True, env={**os.environ, "HOME": str(home)}, check=False,
        )  # fmt: skip
        complaints = [
            line for line in done.stderr.decode("utf-8", "replace").splitlines() if "CONSOLE" in line
        ]
        assert done.returncode == 0, done.stderr
        assert not complaints
        return Dom(done.stdout.decode())

    return opened


def assert_healthy(dom):
    assert dom.root["data-state"] == "ready"
    assert dom.root["data-faults"] == "0", dom.root.get("data-fault")
    assert dom.root["data-requests"] == "0"
