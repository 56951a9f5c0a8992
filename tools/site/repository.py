"""Hook of the documentation site: links to the repository, if its address is known.

The address is that of the CI job (``GITHUB_REPOSITORY``) or of the remote ``origin``.
"""

import os
import posixpath
import re
import subprocess
from typing import Any
from urllib.parse import urlsplit

#: A link to another folder, or code, which does not change.
_LINK = re.compile(
    r"^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)"
    r"|`[^`\n]+`"
    r"|(?<!!)\[(?P<text>[^\[\]]*)\]\((?P<target>(?:\.\./)+[^)#\s]*)(?P<part>#[^)]*)?\)",
    re.MULTILINE | re.DOTALL,
)


def on_config(config: Any, **_: Any) -> Any:
    """Set the address that the head of each page shows."""
    config.repo_url = config.repo_url or address()
    if config.repo_url:
        config.repo_name = urlsplit(config.repo_url).path.strip("/")
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links to files outside docs/ to the repository; without an address, they become text."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def linked(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found["target"] or ""))
        if found["target"] is None or path.startswith("docs/"):
            return found[0]
        if not config.repo_url:
            return found["text"]
        return f"[{found['text']}]({config.repo_url}/tree/HEAD/{path}{found['part'] or ''})"

    return _LINK.sub(linked, markdown)


def address() -> str:
    """Return the web address of the repository; empty if none is known."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    try:
        asked = subprocess.run(
            ["git", "remote", "get-url", "origin"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    url = re.sub(r"^git@([^:]+):", r"https://\1/", asked.stdout.strip()).removesuffix(".git")
    # An address can contain a user name or a password.
    url = re.sub(r"^https://[^/]*@", "https://", url)
    return url if url.startswith("https://") else ""
