"""NIfTI cases: found in either layout, brought to one cube in true proportions, and refused in words that name the file."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from nifti import save_ball, save_nifti

from tensorferry.errors import BadData
from tensorferry.recipes.data.mni152 import Mni152
from tensorferry.recipes.data.volumes import find_cases, list_unlabelled, load_cube


def test_pairs_in_one_folder_are_found(tmp_path: Path) -> None:
    save_ball(tmp_path, "b")
    save_ball(tmp_path, "a")
    cases = find_cases(tmp_path)
    assert [[path.name for path in case.scans] for case in cases] == [["a.nii.gz"], ["b.nii.gz"]]
    assert [case.label.name for case in cases] == ["a_seg.nii.gz", "b_seg.nii.gz"]


def test_a_folder_a_case_with_several_channels_is_found_as_brats_has_it(tmp_path: Path) -> None:
    for name in ("BraTS_001", "BraTS_002"):
        save_ball(tmp_path / name, name, "flair", "t1", "t1ce", "t2", inside=4)
    cases = find_cases(tmp_path)
    assert [case.num_channels for case in cases] == [4, 4]
    assert cases[0].values == (0, 4)
    cube = load_cube(cases[0], 16)
    assert cube.image.shape == (16, 16, 16, 4)
    assert np.unique(cube.classes).tolist() == [0, 1]


def test_the_names_of_brats_2023_are_found_in_one_folder(tmp_path: Path) -> None:
    for name in ("BraTS-GLI-00000-000", "BraTS-GLI-00001-000"):
        save_ball(tmp_path, name, "t1c", "t1n", "t2f", "t2w", separator="-")
    cases = find_cases(tmp_path)
    assert [case.num_channels for case in cases] == [4, 4]
    assert [path.name.removeprefix("BraTS-GLI-00001-000-")[:3] for path in cases[1].scans] == ["t1c", "t1n", "t2f", "t2w"]
    assert cases[1].label.name == "BraTS-GLI-00001-000-seg.nii.gz"


@pytest.mark.parametrize("separator", ["_", "-"])
def test_a_scan_of_four_axes_has_a_channel_for_each_place_on_the_last(separator: str, tmp_path: Path) -> None:
    save_ball(tmp_path / "apart", "a", "t1", "t2", separator=separator)
    save_ball(tmp_path / "whole", "a", separator=separator)
    image = np.stack([nibabel.load(tmp_path / "apart" / f"a{separator}{kind}.nii.gz").get_fdata() for kind in ("t1", "t2")], -1)
    save_nifti(tmp_path / "whole" / "a.nii.gz", image)
    (apart,), (whole,) = find_cases(tmp_path / "apart"), find_cases(tmp_path / "whole")
    assert whole.num_channels == apart.num_channels == 2
    assert np.array_equal(load_cube(whole, 16).image, load_cube(apart, 16).image)


def test_a_scan_belongs_to_the_case_with_the_longest_name(tmp_path: Path) -> None:
    save_ball(tmp_path, "head")
    save_ball(tmp_path, "head-2")
    assert [[path.name for path in case.scans] for case in find_cases(tmp_path)] == [["head-2.nii.gz"], ["head.nii.gz"]]


def test_scans_without_labels_are_told_apart(tmp_path: Path) -> None:
    save_ball(tmp_path, "a")
    save_ball(tmp_path / "more", "b")
    (tmp_path / "more" / "b_seg.nii.gz").unlink()
    assert len(find_cases(tmp_path)) == 1
    assert [path.name for path in list_unlabelled(tmp_path)] == ["b.nii.gz"]


def test_classes_are_the_labels_by_number_in_the_order_that_is_asked(tmp_path: Path) -> None:
    save_ball(tmp_path, "a", inside=4)
    (case,) = find_cases(tmp_path, (0, 2, 4))
    assert np.unique(load_cube(case, 16).classes).tolist() == [0, 2]


def test_a_cube_keeps_true_proportions_whatever_the_spacing(tmp_path: Path) -> None:
    ball = np.square(
        (np.indices((24, 24, 12)) - np.array([11.5, 11.5, 5.5])[:, None, None, None]) * np.array([1, 1, 2])[:, None, None, None]
    )
    labels = (ball.sum(axis=0) < 64).astype(np.uint8)
    save_nifti(tmp_path / "a.nii.gz", labels * 50 + 10.0, spacing=(1.0, 1.0, 2.0))
    save_nifti(tmp_path / "a_seg.nii.gz", labels, spacing=(1.0, 1.0, 2.0))
    classes = load_cube(find_cases(tmp_path)[0], 24).classes
    widths = [np.ptp(np.nonzero(classes)[axis]) + 1 for axis in range(3)]
    assert widths[0] == widths[1] == 16
    assert abs(widths[2] - 16) <= 2  # from voxels of two millimetres


def test_axes_that_point_elsewhere_are_turned(tmp_path: Path) -> None:
    image = np.full((8, 8, 8), 1.0)
    image[0] = 9.0
    labels = (image > 5).astype(np.uint8)
    for name, voxels in (("a", image), ("a_seg", labels)):
        nibabel.save(nibabel.Nifti1Image(voxels, np.diag([-1.0, 1.0, 1.0, 1.0])), tmp_path / f"{name}.nii")
    classes = load_cube(find_cases(tmp_path)[0], 8).classes
    assert classes[-1].all()
    assert not classes[:-1].any()


def test_an_empty_margin_is_cut_away(tmp_path: Path) -> None:
    image = np.zeros((32, 32, 32), np.float32)
    image[8:24, 8:24, 8:24] = 5.0
    image[12:20, 12:20, 12:20] = 9.0
    save_nifti(tmp_path / "a.nii.gz", image)
    save_nifti(tmp_path / "a_seg.nii.gz", (image > 6).astype(np.uint8))
    cube = load_cube(find_cases(tmp_path)[0], 16)
    assert (cube.image != 0).all()
    assert cube.classes.sum() == 8**3


def test_channels_are_normalised_where_they_show_something(tmp_path: Path) -> None:
    save_ball(tmp_path, "a", "t1", "t2")
    image = load_cube(find_cases(tmp_path)[0], 20).image
    np.testing.assert_allclose(image.mean(axis=(0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(image.std(axis=(0, 1, 2)), 1, atol=1e-4)


def test_the_averaged_head_has_three_kinds_of_voxels_and_mirrored_halves() -> None:
    cube = load_cube(Mni152(), 32)
    shares = np.bincount(cube.classes.ravel()) / cube.classes.size
    assert 0.1 < shares[1] < 0.4
    assert 0.05 < shares[2] < 0.3
    assert (cube.classes == cube.classes[::-1]).mean() > 0.97


def _shapes_differ(folder: Path) -> None:
    save_ball(folder, "a", edge=20)
    save_nifti(folder / "a.nii.gz", np.ones((20, 20, 18), np.float32))


def _channel_missing(folder: Path) -> None:
    save_ball(folder, "a", "t1", "t2")
    save_ball(folder, "b", "t1")


def _channels_differ(folder: Path) -> None:
    save_ball(folder, "a", "t1", "t2")
    save_ball(folder, "b", "flair", "t1")


def _depths_differ(folder: Path) -> None:
    for name, num in (("a", 2), ("b", 3)):
        save_ball(folder, name)
        save_nifti(folder / f"{name}.nii.gz", np.ones((20, 20, 20, num), np.float32))


def _no_scan(folder: Path) -> None:
    save_ball(folder, "a")
    (folder / "a.nii.gz").unlink()


def _fractions(folder: Path) -> None:
    save_ball(folder, "a")
    save_nifti(folder / "a_seg.nii.gz", np.full((20, 20, 20), 0.5, np.float32))


def _one_value(folder: Path) -> None:
    save_ball(folder, "a", inside=0)


def _broken(folder: Path) -> None:
    save_ball(folder, "a")
    (folder / "a.nii.gz").write_bytes(b"no volume")


@pytest.mark.parametrize(
    ("fill", "message"),
    [
        (lambda folder: None, "no scan with labels in"),
        (_shapes_differ, r"a\.nii\.gz' has the shape 20 x 20 x 18, but its labels in 'a_seg\.nii\.gz' have 20 x 20 x 20"),
        (_channel_missing, r"b_seg\.nii\.gz' comes with b_t1\.nii\.gz, but '.*a_seg\.nii\.gz' with a_t1\.nii\.gz, a_t2"),
        (_channels_differ, r"comes with b_flair.*, b_t1.*, but .*' with a_t1.*, a_t2.*; give every case the same scans"),
        (
            _depths_differ,
            r"beside '.*b_seg\.nii\.gz' have 3 channels, but those beside '.*a_seg\.nii\.gz' have 2; give every case",
        ),
        (_no_scan, r"a_seg\.nii\.gz' has no scan beside it"),
        (_fractions, r"a_seg\.nii\.gz' holds 0\.5; labels are whole numbers"),
        (_one_value, "hold only one value"),
        (_broken, r"cannot read '.*a\.nii\.gz' as a NIfTI file"),
    ],
)
def test_a_folder_that_cannot_be_used_says_why(fill, message: str, tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(BadData, match=message):
        find_cases(tmp_path)


def test_a_label_out_of_range_is_named_with_its_file(tmp_path: Path) -> None:
    for number in range(5):
        save_ball(tmp_path, f"a{number}", inside=7 if number == 4 else 1)
    with pytest.raises(BadData, match=r"a4_seg\.nii\.gz' holds the label 7, but the classes have 0, 1"):
        find_cases(tmp_path, (0, 1))


def test_a_volume_cut_off_is_named_when_it_is_read(tmp_path: Path) -> None:
    save_ball(tmp_path, "a")
    path = tmp_path / "a.nii.gz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadData, match=r"a\.nii\.gz"):
        load_cube(find_cases(tmp_path)[0], 16)


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    save_ball(tmp_path, "a")
    save_nifti(tmp_path / "a.nii.gz", np.full((20, 20, 20), np.nan, np.float32))
    with pytest.raises(BadData, match="NaN or infinite"):
        load_cube(find_cases(tmp_path)[0], 16)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"there is no folder '.*nowhere'"):
        find_cases(tmp_path / "nowhere")
