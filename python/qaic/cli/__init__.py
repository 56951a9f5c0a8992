"""Command-line tools: argument vectors in, calls of the layers below, text and exit codes out."""
