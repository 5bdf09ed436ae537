"""Merge trained networks into one in which any subset of tasks runs at minimal cost."""

from pamerge.errors import CaptureError, FileFormatError, PamergeError, PamergeWarning
from pamerge.merging import Assigned, Separate, merge
from pamerge.network import MultitaskNetwork, load, save
from pamerge.tasks import TaskSet

__version__ = "0.1.0"

__all__ = [
    "Assigned",
    "CaptureError",
    "FileFormatError",
    "MultitaskNetwork",
    "PamergeError",
    "PamergeWarning",
    "Separate",
    "TaskSet",
    "__version__",
    "load",
    "merge",
    "save",
]
