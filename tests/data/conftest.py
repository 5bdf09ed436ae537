from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """Folder of a real data set, or skip: it lies beside the project or where PAMERGE_DATA says."""
    root = Path(os.environ.get("PAMERGE_DATA", Path(__file__).parents[3] / "shared" / "data"))

    def folder(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"{name} is not in {root}; set PAMERGE_DATA to the folder that has it")
        return root / name

    return folder


@pytest.fixture
def write_idx() -> Callable[..., None]:
    def write(path: Path, array: np.ndarray) -> None:
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        content = header + array.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    return write


def jpeg(colour: tuple[int, int, int], size: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.fixture
def make_lfw() -> Callable[..., Path]:
    """Write a small LFW: ``people`` says how many images each has; image i of all has the grey value 10·i."""

    def make(
        folder: Path,
        people: Mapping[str, int],
        attributes: int = 4,
        *,
        unpacked: bool = False,
        **replaced: bytes,
    ) -> Path:
        images = [(person, number) for person, count in people.items() for number in range(1, count + 1)]
        names = "\t".join(f"attribute {i}" for i in range(attributes))
        lines = ["# a comment", f"#\tperson\timagenum\t{names}"]
        files = {}
        for i, (person, number) in enumerate(images):
            values = "\t".join(f"{(-1) ** (i + a) * (i + 1):.4f}" for a in range(attributes))
            lines.append(f"{person}\t{number}\t{values}")
            stem = person.replace(" ", "_")
            content = jpeg((10 * i % 250,) * 3, (250, 250))
            files[f"{stem}/{stem}_{number:04d}.jpg"] = replaced.get(f"{stem}_{number:04d}", content)
        folder.mkdir(exist_ok=True)
        (folder / "lfw_attributes.txt").write_text("\n".join(lines) + "\n")
        files = {name: content for name, content in files.items() if content != b"missing"}
        if unpacked:
            for name, content in files.items():
                path = folder / "lfw-deepfunneled" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        else:
            with tarfile.open(folder / "lfw-deepfunneled.tgz", "w:gz") as archive:
                for name, content in sorted(files.items()):
                    member = tarfile.TarInfo(f"lfw-deepfunneled/{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        return folder

    return make


@pytest.fixture
def make_celeba() -> Callable[..., Path]:
    """Write a small CelebA: images 1–12 are for training, 13–16 for validation, 17–20 for test."""

    def make(folder: Path, *, partition: bool = True) -> Path:
        images = [f"{i:06d}.jpg" for i in range(1, 21)]
        (folder / "img_align_celeba").mkdir(parents=True)
        for i, name in enumerate(images):
            (folder / "img_align_celeba" / name).write_bytes(jpeg((10 * i, 0, 0), (178, 218)))
        rows = [f"{name} {'1' if i % 2 else '-1'} -1  1 {'-1' if i % 2 else '1'}" for i, name in enumerate(images)]
        header = ["20", "5_o_Clock_Shadow Bald Young Male "]
        (folder / "list_attr_celeba.txt").write_text("\n".join([*header, *rows]) + "\n")
        if partition:
            parts = [f"{name} {0 if i < 12 else 1 if i < 16 else 2}\n" for i, name in enumerate(images)]
            (folder / "list_eval_partition.txt").write_text("".join(parts))
        return folder

    return make
