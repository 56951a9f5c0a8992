"""How things are measured: processes, turns, figures and their rows."""
