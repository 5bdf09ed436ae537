"""Which data sets there are, where they can be downloaded, and which files are expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pamerge.errors import PamergeError


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        about: what it is, in a line.
        download: where its publishers offer it; empty if it comes with pamerge's dependencies.
        files: what has to be in its folder; of several alternatives in one entry, one is enough.
        optional: what is used if it is there.
        also_called: other names that its folder may have.
    """

    about: str
    download: tuple[str, ...] = ()
    files: tuple[tuple[str, ...], ...] = ()
    optional: tuple[str, ...] = ()
    also_called: tuple[str, ...] = ()

    def missing(self, folder: Path) -> list[str]:
        """What is not in a folder, as text."""
        return [" or ".join(names) for names in self.files if not any((folder / name).exists() for name in names)]


SOURCES: Mapping[str, Source] = {
    "digits": Source("canvases of four handwritten digits, 1×8×32, two tasks; comes with scikit-learn"),
    "fashion": Source(
        "canvases of four images of clothing (Fashion-MNIST), 1×28×112 or 1×124×496, two tasks",
        ("https://github.com/zalandoresearch/fashion-mnist",),
        tuple(
            (f"{name}.gz", name)
            for name in (
                "train-images-idx3-ubyte",
                "train-labels-idx1-ubyte",
                "t10k-images-idx3-ubyte",
                "t10k-labels-idx1-ubyte",
            )
        ),
        also_called=("fashion-mnist",),
    ),
    "lfw": Source(
        "Labeled Faces in the Wild with attributes, 3×72×72",
        (
            "http://vis-www.cs.umass.edu/lfw/lfw-deepfunneled.tgz",
            "https://www.cs.columbia.edu/CAVE/databases/pubfig/download/lfw_attributes.txt",
        ),
        (("lfw_attributes.txt",), ("lfw-deepfunneled.tgz", "lfw-deepfunneled")),
    ),
    "celeba": Source(
        "CelebA faces, aligned and cropped, with 40 attributes, 3×72×72",
        ("https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",),
        (("list_attr_celeba.txt",), ("img_align_celeba",)),
        ("list_eval_partition.txt",),
    ),
}


def folder_of(name: str, folder: Path) -> Path:
    """Where a data set's files are: in the folder with its name if there is one, otherwise in the given folder."""
    if name not in SOURCES:
        raise PamergeError(f"There is no data set {name!r}; expected one of: {', '.join(SOURCES)}.")
    own = [folder / called for called in (name, *SOURCES[name].also_called)]
    return next((path for path in own if path.is_dir()), folder)
