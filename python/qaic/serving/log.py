"""Logs of a server: one JSON object a line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from qaic.support.text import escape_json


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, ensure_ascii=False))


def log_to_stderr(*, access: bool) -> None:
    """Send what the server says to standard error, with a line per request of HTTP if ``access``."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("qaic.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access else logging.WARNING)
