"""A trained 3D U-Net for `benchmarks/optimize.py`: PyTorch's, on the head and the slabs of the recipe `unet3d-brain`.

Trained once, in a few minutes, and kept in `.cache/`. It is judged by views of the head in which only labels count that it was
not trained on; it is calibrated on other views.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from tensorferry.recipes.data.mni152 import LABELS, Mni152
from tensorferry.recipes.data.volume_samples import UNKNOWN, VariedViews, WholeVolumes, split_cases
from tensorferry.recipes.models.unet3d import UNet3d

CACHE = Path(__file__).parents[1] / ".cache" / "benchmarks"
EDGE = 64
NUM_STEPS = 80
_LEARNING_RATE = 4e-3
_CALIBRATING, _JUDGING = 1, 2  # where the seeds of their views begin


def make_brain_unet() -> UNet3d:
    """The network with its weights, trained here where nobody has yet."""
    torch.manual_seed(0)
    model = UNet3d(num_classes=len(LABELS))
    path = CACHE / f"brain-unet-{EDGE}-{NUM_STEPS}.pt"
    if not path.is_file():
        _train(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def read_views(num_views: int, judging: bool) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Volumes, channels first, and the classes that count in them."""
    train, held_out = _read_slabs()
    views = VariedViews(held_out if judging else train)
    read = [views.read(0, np.random.default_rng((_JUDGING if judging else _CALIBRATING, at))) for at in range(num_views)]
    return np.stack([np.moveaxis(each["volumes"], -1, 0) for each in read]), np.stack([each["classes"] for each in read])


def _read_slabs() -> tuple[WholeVolumes, WholeVolumes]:
    return split_cases((Mni152(),), EDGE, LABELS)


def _train(model: UNet3d) -> None:
    views = VariedViews(_read_slabs()[0])
    optimizer = torch.optim.Adam(model.parameters(), _LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=NUM_STEPS)
    model.train()
    for step in range(NUM_STEPS):
        view = views.read(0, np.random.default_rng((0, step)))
        volume = torch.from_numpy(np.moveaxis(view["volumes"], -1, 0).copy())[None]
        classes = torch.from_numpy(view["classes"]).long()[None]
        loss = functional.cross_entropy(model(volume), classes, ignore_index=UNKNOWN)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
