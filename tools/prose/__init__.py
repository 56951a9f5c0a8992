"""Checks texts against the project's writing rules: docs, docstrings, doc comments, help and messages."""
