"""Changes of inputs and outputs that options request.

The border of a program gets the type and the layout that were asked for; just inside, a conversion restores
what the model was written for.
"""
