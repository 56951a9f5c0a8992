"""Facts about quantized values, and the plan of the quantization."""
