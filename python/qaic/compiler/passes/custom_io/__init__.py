"""Changes of the caller's tensors that the options ask for.

The border of a program gets the type and the layout that were asked for; just inside, a conversion restores
what the model was written for.
"""
