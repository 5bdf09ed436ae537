"""Merge trained networks into one in which any subset of tasks runs at minimal cost."""

from pamerge.errors import CaptureError, FileFormatError, PamergeError, PamergeWarning
from pamerge.information import Gaussian, Mixture
from pamerge.information.network_conditions import network_conditions
from pamerge.merging import PAM, Assigned, Separate, merge
from pamerge.network import MultitaskNetwork, load, save
from pamerge.tasks import TaskSet

__version__ = "0.1.0"

__all__ = [
    "PAM",
    "Assigned",
    "CaptureError",
    "FileFormatError",
    "Gaussian",
    "Mixture",
    "MultitaskNetwork",
    "PamergeError",
    "PamergeWarning",
    "Separate",
    "TaskSet",
    "__version__",
    "load",
    "merge",
    "network_conditions",
    "save",
]
