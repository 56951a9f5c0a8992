"""The rows of the option table, one module per section of the options reference.

Each module declares one dataclass whose fields are rows; `qaic.options.table` composes them. The table is
divided by section because it is too long for one module. Only the composed class is instantiated, so its
bases need no generated methods.
"""
