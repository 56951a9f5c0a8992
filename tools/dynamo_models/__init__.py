"""Tiny networks that `export_dynamo_models.py` exports with torch's dynamo exporter."""
