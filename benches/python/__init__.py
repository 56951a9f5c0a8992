"""The parts of ``benches/report.py``: what is measured, how, and how it is written down."""
