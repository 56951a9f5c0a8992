"""Transcripts of the system calls to a card."""
