"""What a session is made of: futures, ordered maps, shapes, latencies, metrics."""
