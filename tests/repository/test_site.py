"""The documentation site, as far as it can be checked without its packages; `make site` builds it."""

import runpy
import subprocess
from types import SimpleNamespace

import pytest
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
    hook = SITE["hooks"][0]
    exclude = runpy.run_path(str(ROOT / hook))["on_page_markdown"]
    metas = {}
    for uri in ("adr/0001-record-decisions.md", "guide/running.md"):
        page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
        assert exclude("text", page=page) == "text"
        metas[uri] = page.meta
    assert list(metas.values()) == [{"search": {"exclude": True}}, {}]


@pytest.mark.parametrize(
    ("variables", "origin", "address"),
    [
        ({"GITHUB_REPOSITORY": "a/b"}, "", "https://github.com/a/b"),
        (
            {"GITHUB_REPOSITORY": "a/b", "GITHUB_SERVER_URL": "https://c.d"},
            "https://e.f/g",
            "https://c.d/a/b",
        ),
        ({}, "https://user:word@c.d/a/b.git", "https://c.d/a/b"),
        ({}, "git@c.d:a/b.git", "https://c.d/a/b"),
        ({}, "/srv/main", ""),
        ({}, "", ""),
    ],
)
def test_pages_link_to_the_repository_if_its_address_is_known(
    tmp_path, monkeypatch, variables, origin, address
):
    for name in ("GITHUB_REPOSITORY", "GITHUB_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    if origin:
        subprocess.run(["git", "remote", "add", "origin", origin], check=True)
    hook = runpy.run_path(str(ROOT / SITE["hooks"][1]))
    config = hook["on_config"](SimpleNamespace(repo_url=None))
    assert config.repo_url == address
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guide/a.md"))
    shown = hook["on_page_markdown"]("[x](../../examples/x#y), [p](../b.md#q)", page=page, config=config)
    linked = f"[x]({address}/tree/HEAD/examples/x#y)" if address else "x"
    assert shown == f"{linked}, [p](../b.md#q)"


@pytest.mark.parametrize(
    "text",
    ["![x](../../x.png)", "`[x](../../x)`", "```md\n[x](../../x)\n```", "  ~~~~\n[x](../../x)\n```\n  ~~~~"],
)
def test_pictures_and_code_stay_as_they_are(text):
    shown = runpy.run_path(str(ROOT / SITE["hooks"][1]))["on_page_markdown"]
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guide/a.md"))
    text = f"{text}\n[`y`](../../y)"
    config = SimpleNamespace(repo_url="https://c.d")
    assert shown(text, page=page, config=config) == text.replace("../../y", "https://c.d/tree/HEAD/y")


def test_no_address_is_known_without_git(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert runpy.run_path(str(ROOT / SITE["hooks"][1]))["address"]() == ""


def test_the_first_page_shows_the_product():
    assert SITE["theme"]["icon"]["logo"]
    assert "(images/report.png)" in (ROOT / "docs" / "index.md").read_text()
    assert "tables" in SITE["markdown_extensions"]
