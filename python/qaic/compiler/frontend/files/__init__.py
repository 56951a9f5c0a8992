"""Files of a model and its weights."""
