"""Data sets of the paper's experiments, read from the files that their publishers offer for download."""

from pamerge.data.canvases import digit_canvases, fashion_canvases
from pamerge.data.dataset import LoadReport, MultitaskDataset, Splits, split_labels
from pamerge.data.faces import celeba, lfw
from pamerge.data.idx import read_idx
from pamerge.data.sources import SOURCES, Source, folder_of

__all__ = [
    "SOURCES",
    "LoadReport",
    "MultitaskDataset",
    "Source",
    "Splits",
    "celeba",
    "digit_canvases",
    "fashion_canvases",
    "folder_of",
    "lfw",
    "read_idx",
    "split_labels",
]
