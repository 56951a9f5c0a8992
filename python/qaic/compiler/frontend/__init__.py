"""User models: checks, symbols and specializations."""
