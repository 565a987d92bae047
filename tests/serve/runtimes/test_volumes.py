"""The steps around a network that segments: what they make of NIfTI files and scores, and what they refuse."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from nifti import save_nifti
from PIL import Image

from tensorferry.errors import BadModel
from tensorferry.recipes.data.mni152 import Mni152, find_image
from tensorferry.recipes.data.volumes import load_cube
from tensorferry.serve.core.faults import InvalidRequest
from tensorferry.serve.runtimes.runtime import LoadOptions, Runner
from tensorferry.serve.runtimes.table import load_runtime
from tensorferry.serve.runtimes.volumes import read_scan

VOLUME = {"kind": "volume", "input": "volumes", "edge": 16, "channels": 1}
SEGMENTATION = {"kind": "segmentation", "labels": ["none", "grey", "white"], "scores": "y", "volumes": "volumes"}


def load(folder: Path, description: object) -> Runner:
    (folder / "transform.json").write_text(json.dumps(description))
    return load_runtime("transform", LoadOptions(folder / "transform.json")).new_runner()


def as_bytes(*rows: bytes) -> np.ndarray:
    array = np.empty((len(rows), 1), np.object_)
    array[:, 0] = rows
    return array


def save(voxels: Any, spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> bytes:
    return nibabel.Nifti1Image(np.asarray(voxels), np.diag([*spacing, 1.0])).to_bytes()


BOX = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


def test_a_served_file_becomes_what_the_network_was_trained_on(tmp_path: Path) -> None:
    runner = load(tmp_path, {**VOLUME, "edge": 24})
    found, voxel = runner.run({"SCAN": as_bytes(find_image().read_bytes())}, ["volumes", "VOXEL_MM"])
    np.testing.assert_array_equal(found[0], load_cube(Mni152(), 24).image)
    assert voxel.shape == (1, 1)
    assert 7 < voxel[0, 0] < 9  # a head of about 19 cm in 24 voxels


def test_packed_turned_and_newer_files_hold_the_same(tmp_path: Path) -> None:
    save_nifti(tmp_path / "box.nii.gz", BOX, (1.0, 2.0, 3.0))
    mirrored = nibabel.Nifti1Image(BOX[::-1], np.array([[-1, 0, 0, 3], [0, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 1.0]]))
    newer = nibabel.Nifti2Image(BOX, np.diag([1.0, 2.0, 3.0, 1.0]))
    for data in ((tmp_path / "box.nii.gz").read_bytes(), mirrored.to_bytes(), newer.to_bytes()):
        image, spacing = read_scan(data)
        np.testing.assert_array_equal(image[..., 0], BOX)
        assert spacing == (1.0, 2.0, 3.0)


def test_scores_become_millilitres_and_a_picture(tmp_path: Path) -> None:
    runner = load(tmp_path, SEGMENTATION)
    classes = np.zeros((2, 8, 8, 8), int)
    classes[0, :2, :, :], classes[1, :, :, 0] = 1, 2
    inputs = {"y": np.eye(3, dtype=np.float32)[classes], "volumes": np.ones((2, 8, 8, 8, 1), np.float32)}
    inputs["VOXEL_MM"] = np.float32([[10.0], [1.0]])
    volumes, labels, pictures, found = runner.run(inputs, ["VOLUMES_ML", "LABELS", "PICTURE", "CLASSES"])
    np.testing.assert_allclose(volumes, [[128.0, 0.0], [0.0, 0.064]])
    assert labels.tolist() == [[b"grey", b"white"]] * 2
    np.testing.assert_array_equal(found, classes)
    assert all(Image.open(io.BytesIO(data)).format == "PNG" for data in pictures[:, 0])
    assert pictures[0, 0] != pictures[1, 0]


def _claim(**fields: Any) -> bytes:
    """A box whose header says something else."""
    raw = save(BOX)
    header = nibabel.Nifti1Header.from_fileobj(io.BytesIO(raw), check=False)
    for name, value in fields.items():
        header[name] = value
    return header.binaryblock + raw[348:]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param(b"", "no NIfTI file that can be read", id="nothing"),
        pytest.param(b"no scan at all" * 100, "no NIfTI file that can be read", id="text"),
        pytest.param(gzip.compress(save(BOX))[:60], "no NIfTI file that can be read", id="cut gzip"),
        pytest.param(save(BOX)[:400], "no NIfTI file that can be read", id="cut file"),
        pytest.param(_claim(dim=[3, 30000, 30000, 30000, 1, 1, 1, 1]), "at most 33,554,432 are taken", id="huge"),
        pytest.param(_claim(dim=[3, 300, 300, 300, 1, 1, 1, 1]), "ends too early", id="short"),
        pytest.param(_claim(dim=[3, -4, 5, 6, 1, 1, 1, 1]), "expected three axes", id="negative"),
        pytest.param(_claim(pixdim=[1, 1e9, 1, 1, 1, 1, 1, 1]), "which cannot be", id="flat voxels"),
        pytest.param(_claim(vox_offset=1e30), "no NIfTI file that can be read", id="far offset"),
        pytest.param(save(np.full((4, 4, 4), np.nan, np.float32)), "NaN or infinite", id="NaN"),
        pytest.param(save(np.ones((4, 4), np.int16)), "expected three axes", id="two axes"),
        pytest.param(save(np.ones((4, 4, 4), np.complex64)), "expected numbers", id="complex"),
        pytest.param(
            save(np.ones((4, 4, 4, 2), np.int16)), "the scan has 2 channels; the model was trained on 1", id="two channels"
        ),
    ],
)
def test_bytes_that_are_no_scan_are_the_clients_mistake(data: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=says):
        load(tmp_path, VOLUME).run({"SCAN": as_bytes(data)}, ["volumes"])


def test_a_few_bytes_that_unpack_to_very_many_are_refused() -> None:
    bomb = gzip.compress(gzip.compress(bytes(2**28 + 2**21), 1), 1)  # packed twice, to be small here
    with pytest.raises(InvalidRequest, match="at most"):
        read_scan(gzip.decompress(bomb))


def test_a_damaged_header_is_refused_or_read_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    raw, num_read = save(BOX), 0
    for _ in range(400):
        damaged = bytearray(raw)
        for at in rng.integers(0, 348, rng.integers(1, 6)):
            damaged[at] = rng.integers(0, 256)
        try:
            image, _ = read_scan(bytes(damaged))
        except InvalidRequest:
            continue
        num_read += 1
        assert image.nbytes <= 4 * 2**20
    assert num_read


@pytest.mark.parametrize(
    "description",
    [
        {**VOLUME, "edge": 0},
        {**VOLUME, "edge": 100_000},
        {**VOLUME, "channels": 0},
        {"kind": "volume"},
        {**SEGMENTATION, "labels": ["one"]},
        {**SEGMENTATION, "labels": None},
        {"kind": "segmentation"},
    ],
)
def test_a_description_that_makes_no_sense_is_refused_when_loaded(description: object, tmp_path: Path) -> None:
    with pytest.raises(BadModel):
        load(tmp_path, description)
