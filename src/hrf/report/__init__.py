"""What commands and experiments show: files, tables, progress bars, figures and HTML pages."""

from hrf.disk import folder, write
from hrf.report import pages
from hrf.report.figures import png
from hrf.report.progress import Progress, progress

__all__ = ["Progress", "folder", "pages", "png", "progress", "write"]
