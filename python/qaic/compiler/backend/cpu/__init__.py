"""Containers of CPU programs."""
