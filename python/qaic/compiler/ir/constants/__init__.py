"""Constants: positions and readers of their numbers, and facts that follow from them."""
