"""Runs any subset of the tasks of a network that pamerge exported; needs numpy and onnxruntime only."""

from pamerge_runtime.errors import BundleError
from pamerge_runtime.manifest import Manifest, Output, Subset, read_manifest
from pamerge_runtime.runtime import Runtime

__version__ = "0.1.0"

__all__ = ["BundleError", "Manifest", "Output", "Runtime", "Subset", "__version__", "read_manifest"]
