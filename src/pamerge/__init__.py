"""Merge trained networks into one in which any subset of tasks runs at minimal cost."""

from pamerge.errors import CaptureError, FileFormatError, PamergeError, PamergeWarning
from pamerge.tasks import TaskSet

__version__ = "0.1.0"

__all__ = ["CaptureError", "FileFormatError", "PamergeError", "PamergeWarning", "TaskSet", "__version__"]
