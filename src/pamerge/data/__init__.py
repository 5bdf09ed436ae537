"""Data sets of the paper's experiments, read from the files that their publishers offer for download."""

from pamerge.data.canvases import digit_canvases, fashion_canvases
from pamerge.data.dataset import LoadReport, MultitaskDataset, Splits, split_labels
from pamerge.data.faces import celeba, lfw
from pamerge.data.idx import read_idx

__all__ = [
    "LoadReport",
    "MultitaskDataset",
    "Splits",
    "celeba",
    "digit_canvases",
    "fashion_canvases",
    "lfw",
    "read_idx",
    "split_labels",
]
