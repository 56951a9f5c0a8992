"""A browser without a window, which opens pages and reports their contents."""

import contextlib
import fcntl
import html.parser
import json
import os
import re
import shutil
import subprocess

import pytest

from child_process import started

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
NEEDS_BROWSER = pytest.mark.skipif(BROWSER is None, reason="no chromium; `make browser` installs it")

COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")

# Events of a user, which are not part of the page's own script.
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
    """A document as rendered by a browser: attributes of elements by id or part, cells of tables, texts."""

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


class Browser:
    """A browser in which tests open pages, one after another.

    Requests and answers are JSON, each followed by a zero byte: the Chrome DevTools protocol over pipes.
    """

    def __init__(self, requests, answers):
        self._requests, self._answers = requests, answers
        self._number, self._bytes, self._events = 0, b"", []

    def _read(self):
        while b"\0" not in self._bytes:
            read = os.read(self._answers, 1 << 20)
            assert read, "the browser ended"
            self._bytes += read
        message, _, self._bytes = self._bytes.partition(b"\0")
        return json.loads(message)

    def _call(self, method, session=None, **params):
        self._number += 1
        page = {"sessionId": session} if session else {}
        request = {"id": self._number, "method": method, "params": params, **page}
        os.write(self._requests, json.dumps(request).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._events.append(message)

    def _wait(self, event):
        while all(message["method"] != event for message in self._events):
            self._events.append(self._read())

    def document(self, address, width=0):
        """Return the text of a page after twenty seconds of its own time, and the output of its console.

        ``width`` is the width of the window in pixels; 0 means the default.
        """
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime"):
            self._call(f"{domain}.enable", session)
        size = {"width": width, "height": 0, "deviceScaleFactor": 0, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", session, **size)
        self._call("Emulation.setVirtualTimePolicy", session, policy="pause")
        self._call("Page.navigate", session, url=address)
        policy = "pauseIfNetworkFetchesPending"
        self._call("Emulation.setVirtualTimePolicy", session, policy=policy, budget=20_000)
        self._wait("Emulation.virtualTimeBudgetExpired")
        text = "document.documentElement.outerHTML"
        found = self._call("Runtime.evaluate", session, expression=text, returnByValue=True)
        self._call("Target.closeTarget", targetId=target)
        complaints = [message for message in self._events if message["method"] in COMPLAINTS]
        self._events.clear()
        return found["result"]["value"], complaints


@contextlib.contextmanager
def opener(home):
    """Return a function that opens a page and returns the document after its script; ``home`` is a folder."""
    (for_browser, requests), (answers, of_browser) = os.pipe(), os.pipe()
    # The shell assigns the numbers that the browser expects to the pipes.
    passed = [fcntl.fcntl(number, fcntl.F_DUPFD, 10) for number in (for_browser, of_browser)]
    command = [
        *("bash", "-c", 'exec 3<&{} 4>&{}; exec "$@"'.format(*passed), "bash"),
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={home / 'profile'}"),
        *("--window-size=1280,1000", "--remote-debugging-pipe"),
    ]
    environment = {**os.environ, "HOME": str(home)}
    with started(command, stderr=subprocess.DEVNULL, pass_fds=passed, env=environment):
        for number in (for_browser, of_browser, *passed):
            os.close(number)
        browser = Browser(requests, answers)

        def opened(path, drive=None, width=0):
            if drive is not None:
                text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
                script = f"{DRIVER}\nasync function run() {{ {drive} }}\nwait();"
                path = path.with_name("driven.html")
                path.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
            text, complaints = browser.document(path.as_uri(), width)
            assert not complaints
            return Dom(text)

        yield opened
        for number in (requests, answers):
            os.close(number)


def assert_healthy(dom):
    assert dom.root["data-state"] == "ready"
    assert dom.root["data-faults"] == "0", dom.root.get("data-fault")
    assert dom.root["data-requests"] == "0"
