"""The parts of ``benches/report.py``: measurements, methods, and output."""
