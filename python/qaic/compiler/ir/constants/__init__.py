"""Constants: where their numbers are, how they are read, and what follows from them."""
