"""What a segmenting recipe shows of a volume."""

import io

import numpy as np

from tensorferry.recipes.segmenting import draw_slice


def test_scan_truth_and_prediction_stand_side_by_side_under_their_captions() -> None:
    from PIL import Image

    edge = 8
    truth = np.zeros((edge, edge, edge), np.int32)
    found = truth + 1
    volume = np.random.default_rng(0).random((edge, edge, edge, 1), dtype=np.float32)
    sheet = np.asarray(Image.open(io.BytesIO(draw_slice(volume, truth, found, place=4))))
    panel = sheet.shape[1] // 3
    caption = sheet.shape[0] - panel
    strips = [sheet[:caption, column * panel : (column + 1) * panel] for column in range(3)]
    assert all(strip.max() == 255 for strip in strips)
    assert len({strip.tobytes() for strip in strips}) == 3
    panels = [sheet[caption:, column * panel : (column + 1) * panel] for column in range(3)]
    assert panels[0].std() > 0
    assert not panels[1].any()
    assert len(np.unique(panels[2].reshape(-1, 3), axis=0)) == 1
    assert panels[2].any()
