"""Models of users: checks, symbols and specializations."""
