"""Comparing schemes fairly: configurations, the staged and resumable runner, metrics and tables."""

from pamerge.experiments.config import Choice, Config, First, Pretraining, Problem1, read_config
from pamerge.experiments.metrics import Gain, expected_cost, gain, sharing_ratios
from pamerge.experiments.runner import original_networks, run
from pamerge.experiments.store import Event

__all__ = [
    "Choice",
    "Config",
    "Event",
    "First",
    "Gain",
    "Pretraining",
    "Problem1",
    "expected_cost",
    "gain",
    "original_networks",
    "read_config",
    "run",
    "sharing_ratios",
]
