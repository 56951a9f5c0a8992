"""Trained models of published packages: their sources and their evaluation."""
