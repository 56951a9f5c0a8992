"""Changes of inputs and outputs that options request.

Inputs and outputs of a program get the requested type and layout; conversions inside restore those of the
model.
"""
