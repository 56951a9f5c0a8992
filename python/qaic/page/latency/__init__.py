"""Pages, charts and text of latencies."""
