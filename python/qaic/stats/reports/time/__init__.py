"""Reports about when things ran, and what they waited for."""
