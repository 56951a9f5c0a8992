"""Files that hold a model and its weights."""
