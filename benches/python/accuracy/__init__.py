"""What reduced precision costs: models with their data, settings, and searches."""
