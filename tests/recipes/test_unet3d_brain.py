"""The brain recipe: what counts and what is held out, what it learns, and the settings it refuses."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nifti import save_ball
from PIL import Image

from tensorferry.errors import BadRecipe
from tensorferry.recipes.data.segmentation import compute_dice, find_classes
from tensorferry.recipes.data.volume_samples import UNKNOWN
from tensorferry.recipes.unet3d_brain import BrainSettings, UNet3dBrain

TRIAL = Path(__file__).with_name("brain_trial.py")


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _recipe(**settings) -> UNet3dBrain:
    return UNet3dBrain(BrainSettings(**{"resolution": 16, "base": 2} | settings))


def _know_all(num_classes: int):
    """A network that gives the right class the highest score; it is shown the truth."""
    return lambda inputs: np.eye(num_classes, dtype=np.float32)[inputs["volumes"][..., 0].astype(int)]


def test_every_voxel_of_the_only_head_is_trained_on_or_held_out_never_both() -> None:
    data = _recipe(augment=False).load_data(None)
    train, held_out = (samples.read(0, _rng())["classes"] for samples in (data.train, data.held_out))
    assert ((train == UNKNOWN) != (held_out == UNKNOWN)).all()
    assert (held_out != UNKNOWN).mean() == 0.25
    assert data.labels == ("background", "grey", "white")
    assert "2 of 8 slabs of it held out" in data.source


def test_with_several_cases_whole_ones_are_held_out(tmp_path: Path) -> None:
    for number in range(3):
        save_ball(tmp_path / str(number), f"case{number}", "t1", "t2", radius=4.0 + number)
    data = _recipe().load_data(tmp_path)
    assert (len(data.held_out), data.train.num_channels, data.labels) == (1, 2, ("0", "1"))
    assert data.held_out.cases[0].label.name == "case2_seg.nii.gz"
    assert data.held_out.cases[0] not in data.train.cases.cases
    assert (data.held_out.read(0, _rng())["classes"] != UNKNOWN).all()


def test_the_data_says_which_labels_were_found_and_what_was_left_out(tmp_path: Path) -> None:
    save_ball(tmp_path, "a", inside=7)
    save_ball(tmp_path, "b")
    (tmp_path / "b_seg.nii.gz").unlink()
    source = _recipe().load_data(tmp_path).source
    assert f"{tmp_path} with the labels 0, 7, cases: 1, scans without labels left out: 1 (b.nii.gz, ...)" in source


def test_a_view_depends_on_the_generator_alone() -> None:
    data = _recipe(patch=8).load_data(None)
    first, again, other = (data.train.read(3, _rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["volumes"], other["volumes"])
    assert first["volumes"].shape == (8, 8, 8, 1)
    assert first["classes"].shape == (8, 8, 8)


def test_every_patch_holds_voxels_that_count() -> None:
    data = _recipe(patch=8).load_data(None)
    assert all((data.train.read(index, _rng(index))["classes"] != UNKNOWN).any() for index in range(len(data.train)))


def test_views_without_augmentation_are_the_case_itself() -> None:
    data = _recipe(augment=False).load_data(None)
    assert np.array_equal(data.train.read(0, _rng(1))["volumes"], data.held_out.read(0, _rng(2))["volumes"])


def test_patches_that_overlap_are_put_together_to_the_whole() -> None:
    truth = _rng().integers(3, size=(20, 16, 24))
    predict = _know_all(3)
    volume = truth[..., None].astype(np.float32)
    assert np.array_equal(find_classes(predict, volume), truth)
    assert np.array_equal(find_classes(predict, volume, patch=8), truth)


def test_dice_passes_over_what_does_not_count() -> None:
    truth = np.array([0, 0, 1, 1, UNKNOWN, UNKNOWN], np.int32)
    found = np.array([0, 0, 1, 0, 2, 2])
    dice = compute_dice(found, truth, 3)
    np.testing.assert_allclose(dice[:2], [4 / 5, 2 / 3])
    assert np.isnan(dice[2])


def test_evaluating_a_network_that_knows_all_gives_one_and_one_that_knows_nothing_zero() -> None:
    recipe = _recipe()
    data = recipe.load_data(None)
    whole = data.held_out.read(0, _rng())["classes"]
    right = np.eye(3, dtype=np.float32)[np.maximum(whole, 0)][None]
    assert recipe.evaluate(lambda inputs: right, data.held_out) == {"dice": 1.0, "dice_grey": 1.0, "dice_white": 1.0}
    nothing = np.zeros((1, 16, 16, 16, 3), np.float32)
    assert recipe.evaluate(lambda inputs: nothing, data.held_out)["dice"] == 0.0


def test_the_picture_shows_scan_truth_and_what_was_found_side_by_side() -> None:
    recipe = _recipe()
    data = recipe.load_data(None)
    picture = recipe.illustrate(lambda inputs: np.eye(3, dtype=np.float32)[np.full((1, 16, 16, 16), 2)], data)
    pixels = np.asarray(Image.open(io.BytesIO(picture)))
    height, width, _ = pixels.shape
    edge = width // 3
    line = (height - edge) // 2  # of words above the panels, and of the classes' names below
    assert 0 < line < edge / 8
    assert np.unique(pixels[:line]).size > 1
    assert np.unique(pixels[-line:]).size > 1
    scan, truth, found = (pixels[line : line + edge, begin : begin + edge] for begin in (0, edge, 2 * edge))
    assert np.unique(scan).size > 4
    assert len(np.unique(truth.reshape(-1, 3), axis=0)) == 3
    assert len(np.unique(found.reshape(-1, 3), axis=0)) == 1


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_few_steps_lower_the_loss_and_raise_dice(backend: str, keras_python: Callable[[str], str]) -> None:
    done = subprocess.run([keras_python(backend), TRIAL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses, before, after = json.loads(done.stdout)
    assert losses[-1] < 0.8 * losses[0]
    assert after > before + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"resolution": 20}, "resolution=20 cannot be halved 3 times; use a multiple of 8"),
        ({"resolution": 8}, "resolution=8"),
        ({"patch": 4}, "patch=4 cannot be halved"),
        ({"patch": 24}, "patch=24 is larger than resolution=16"),
    ],
)
def test_sizes_that_the_network_cannot_take_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(BadRecipe, match=message):
        _recipe(**settings).load_data(None)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("0,1", "cannot read '0' of labels="),
        ("0:", "cannot read '0:'"),
        ("0:background", "names only one class"),
        ("a:b", "cannot read"),
    ],
)
def test_labels_that_cannot_be_read_are_refused(labels: str, message: str, tmp_path: Path) -> None:
    save_ball(tmp_path, "a")
    with pytest.raises(BadRecipe, match=message):
        _recipe(labels=labels).load_data(tmp_path)


def test_labels_have_the_names_that_are_given(tmp_path: Path) -> None:
    save_ball(tmp_path, "a", inside=4)
    assert _recipe(labels="0:background,4:enhancing").load_data(tmp_path).labels == ("background", "enhancing")


def test_a_network_of_whole_volumes_tells_how_a_file_becomes_its_input() -> None:
    recipe = _recipe()
    told = recipe.describe_transform(recipe.load_data(None))
    assert told == {"kind": "volume", "input": "volumes", "edge": 16, "channels": 1}
    patched = _recipe(patch=8)
    assert patched.describe_transform(patched.load_data(None)) is None
