"""What a segmenting recipe shows of a volume."""

import io

import numpy as np

from tensorferry.recipes.data.segmentation import draw_slice


def test_scan_truth_and_prediction_stand_side_by_side_under_their_captions() -> None:
    from PIL import Image

    edge = 8
    truth = np.zeros((edge, edge, edge), np.int32)
    found = truth + 1
    volume = np.random.default_rng(0).random((edge, edge, edge, 1), dtype=np.float32)
    sheet = np.asarray(Image.open(io.BytesIO(draw_slice(volume, truth, found, 4, ("background", "grey")))))
    panel = sheet.shape[1] // 3
    caption = (sheet.shape[0] - panel) // 2
    strips = [sheet[:caption, column * panel : (column + 1) * panel] for column in range(3)]
    assert all(strip.max() == 255 for strip in strips)
    assert len({strip.tobytes() for strip in strips}) == 3
    panels = [sheet[caption : caption + panel, column * panel : (column + 1) * panel] for column in range(3)]
    assert panels[0].std() > 0
    assert not panels[1].any()
    assert len(np.unique(panels[2].reshape(-1, 3), axis=0)) == 1
    assert panels[2].any()


def test_the_colour_of_every_class_stands_in_the_legend() -> None:
    from PIL import Image

    edge = 8
    classes = np.arange(edge**3, dtype=np.int32).reshape(edge, edge, edge) % 7
    volume = np.ones((edge, edge, edge, 1), np.float32)
    sheets = [
        np.asarray(Image.open(io.BytesIO(draw_slice(volume, classes, classes, 4, [f"kind {n}" for n in range(num)]))))
        for num in (2, 7)
    ]
    two, seven = ({tuple(pixel) for pixel in sheet[28 + sheet.shape[1] // 3 :].reshape(-1, 3).tolist()} for sheet in sheets)
    shown = {tuple(pixel) for pixel in sheets[1][28 : 28 + 320, 320:].reshape(-1, 3).tolist()}
    assert shown <= seven
    assert not shown <= two
    assert sheets[1].shape[0] > sheets[0].shape[0]  # a second line


def test_without_the_truth_two_panels_are_shown() -> None:
    from PIL import Image

    volume, found = np.ones((8, 8, 8, 1), np.float32), np.ones((8, 8, 8), np.uint8)
    sheet = Image.open(io.BytesIO(draw_slice(volume, None, found, 4, ("background", "grey", "white"))))
    whole = Image.open(io.BytesIO(draw_slice(volume, found, found, 4, ("background", "grey", "white"))))
    assert (sheet.width * 3, sheet.height) == (whole.width * 2, whole.height)
