"""The documentation site, as far as it can be judged without its packages; `make site` builds it."""

import runpy
from types import SimpleNamespace

import yaml

from guide_blocks import ROOT

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages_of(entries):
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def test_every_page_is_in_the_menu_once_and_decisions_are_not():
    docs = ROOT / "docs"
    found = [
        path.relative_to(docs).as_posix() for path in docs.rglob("*") if path.suffix in (".md", ".ipynb")
    ]
    assert sorted(pages_of(SITE["nav"])) == sorted(page for page in found if not page.startswith("adr/"))


def test_decisions_are_not_in_the_search():
    (hook,) = SITE["hooks"]
    exclude = runpy.run_path(str(ROOT / hook))["on_page_markdown"]
    metas = {}
    for uri in ("adr/0001-record-decisions.md", "guide/running.md"):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
        assert exclude("text", page=page) == "text"
        metas[uri] = page.meta
    assert list(metas.values()) == [{"search": {"exclude": True}}, {}]


def test_the_first_page_shows_the_product():
    assert SITE["theme"]["icon"]["logo"]
    assert "(images/report.png)" in (ROOT / "docs" / "index.md").read_text()
    assert "tables" in SITE["markdown_extensions"]
