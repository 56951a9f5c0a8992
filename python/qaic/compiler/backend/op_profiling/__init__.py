"""Descriptions of the operations that are measured."""
