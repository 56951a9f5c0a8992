"""What is known of values that are quantized, and the plan of it."""
