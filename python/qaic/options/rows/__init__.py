"""The rows of the option table, one module per section of the options reference.

Each module declares one dataclass whose fields are rows; `qaic.options.table` composes them. The modules are
kept apart because the whole table is too long for one, and by section because that is how people look for an
option. Only the class that is composed of the sections is made, so its bases need no generated methods.
"""
