"""Loss of reduced precision: models with their data, settings, and searches."""
