"""Tables as notebooks show them. Notebooks have styles of their own for tables, so these have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qaic.support.text import escape_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: rows that are shown; the object has them all
MOST_ROWS: Final = 60


def html_table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str = "") -> str:
    """Return a table; every text in it is escaped, and what has no value is an empty cell.

    Parameters
    ----------
    titles
        Of the columns.
    rows
        Each has a cell per column. After `MOST_ROWS` of them a line states how many there are.
    caption
        Text above the table.
    """
    listed = list(rows)
    head = "".join(f"<th>{escape_html(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed[:MOST_ROWS])
    more = len(listed) - MOST_ROWS
    rest = f'<tr><td colspan="{len(titles)}">and {more} more</td></tr>' if more > 0 else ""
    above = f"<p>{escape_html(caption)}</p>" if caption else ""
    return f"<div>{above}<table><thead><tr>{head}</tr></thead><tbody>{body}{rest}</tbody></table></div>"


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"<td>{escape_html(text)}</td>"
