"""Reports as data: sentences, and tables of columns with units.

One value for all forms: text (`qaic.report.text`), CSV and JSON (`qaic.report.files`), pages and notebooks
(`qaic.report.html`) show the same rows, so they cannot disagree.
"""

from qaic.report.data import NOT_MEASURED, Cell, Column, Report, Table, columns_of

__all__ = ["NOT_MEASURED", "Cell", "Column", "Report", "Table", "columns_of"]
