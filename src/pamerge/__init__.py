"""Merge trained networks into one in which any subset of tasks runs at minimal cost."""

from pamerge_runtime import BundleError, Runtime

from pamerge.deploy import export_onnx, export_program
from pamerge.errors import CaptureError, FileFormatError, PamergeError, PamergeWarning
from pamerge.information import Gaussian, Mixture
from pamerge.information.network_conditions import network_conditions
from pamerge.merging import MTZ, PAM, Assigned, Separate, merge
from pamerge.network import MultitaskNetwork, load, save
from pamerge.pruning import VIB, Magnitude, PruningPath, Taylor, prune
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
from pamerge.tuning import compare_alphas, tune_alpha

__version__ = "0.1.0"

__all__ = [
    "MTZ",
    "PAM",
    "VIB",
    "Assigned",
    "BundleError",
    "CaptureError",
    "Classification",
    "Custom",
    "DivergenceError",
    "FileFormatError",
    "Gaussian",
    "Magnitude",
    "Mixture",
    "MultiLabel",
    "MultitaskNetwork",
    "Objective",
    "PamergeError",
    "PamergeWarning",
    "PruningPath",
    "Regression",
    "Runtime",
    "Separate",
    "TaskSet",
    "Taylor",
    "__version__",
    "compare_alphas",
    "evaluate",
    "export_onnx",
    "export_program",
    "finetune",
    "load",
    "merge",
    "network_conditions",
    "prune",
    "save",
    "tune_alpha",
]
