"""Parts of a session: futures, ordered maps, shapes, latencies, metrics."""
