"""One of each for reports: table, number format, progress bar, figure as PNG, HTML page, atomic write.

Importing this module needs neither rich nor matplotlib; `table` and `progress` import rich when they are called.
"""

from hrf.atomic_write import folder, write
from hrf.report import pages
from hrf.report.figures import png
from hrf.report.number_format import count, number
from hrf.report.progress import Progress, progress
from hrf.report.tables import table

__all__ = ["Progress", "count", "folder", "number", "pages", "png", "progress", "table", "write"]
