"""Merge trained networks into one in which any subset of tasks runs at minimal cost."""

from pamerge.errors import CaptureError, FileFormatError, PamergeError, PamergeWarning
from pamerge.information import Gaussian, Mixture
from pamerge.information.network_conditions import network_conditions
from pamerge.merging import MTZ, PAM, Assigned, Separate, merge
from pamerge.network import MultitaskNetwork, load, save
from pamerge.tasks import TaskSet
from pamerge.training import (
    Classification,
    Custom,
    DivergenceError,
    MultiLabel,
    Objective,
    Regression,
    evaluate,
    finetune,
)

__version__ = "0.1.0"

__all__ = [
    "MTZ",
    "PAM",
    "Assigned",
    "CaptureError",
    "Classification",
    "Custom",
    "DivergenceError",
    "FileFormatError",
    "Gaussian",
    "Mixture",
    "MultiLabel",
    "MultitaskNetwork",
    "Objective",
    "PamergeError",
    "PamergeWarning",
    "Regression",
    "Separate",
    "TaskSet",
    "__version__",
    "evaluate",
    "finetune",
    "load",
    "merge",
    "network_conditions",
    "save",
]
