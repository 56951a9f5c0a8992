"""What goes into the inferences of ``qaic-runner``."""
