"""Objectives, fine-tuning and evaluation."""

from pamerge.training.divergence import DivergenceError
from pamerge.training.evaluation import evaluate
from pamerge.training.finetune import finetune
from pamerge.training.objectives import Classification, Custom, MultiLabel, Regression, infer_objectives
from pamerge.training.protocol import Objective
from pamerge.training.results import FinetuneResult, Record

__all__ = [
    "Classification",
    "Custom",
    "DivergenceError",
    "FinetuneResult",
    "MultiLabel",
    "Objective",
    "Record",
    "Regression",
    "evaluate",
    "finetune",
    "infer_objectives",
]
