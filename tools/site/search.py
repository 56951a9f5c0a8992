"""Hook of the documentation site: decisions are not in its search."""

from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Exclude the pages of decisions from the search."""
    if page.file.src_uri.startswith("adr/"):
        page.meta["search"] = {"exclude": True}
    return markdown
