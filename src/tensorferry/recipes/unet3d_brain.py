"""A recipe that finds grey and white matter, or what a user's labels name, in MRI volumes: a 3D U-Net in Keras.

It runs on Keras' TensorFlow and torch back ends. A network trained on whole volumes sees everything and needs the memory for it;
with `patch` it sees cut-outs, needs less, and knows less of what lies around.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tensorferry.errors import BadRecipe
from tensorferry.recipes.data.mni152 import LABELS, Mni152
from tensorferry.recipes.data.segmentation import compute_dice, draw_slice, find_classes
from tensorferry.recipes.data.volume_samples import HELD_OUT_SLABS, NUM_SLABS, UNKNOWN, VariedViews, WholeVolumes, split_cases
from tensorferry.recipes.data.volumes import Case, find_cases, list_unlabelled
from tensorferry.recipes.recipe import Data, KerasRecipe, PositiveFloat, PositiveInt, Predict, RecipeSettings, Samples

_NUM_LEVELS = 4
_EDGE_STEP = 2 ** (_NUM_LEVELS - 1)  # the network halves a volume that often


@dataclass(frozen=True)
class BrainSettings(RecipeSettings):
    """What can be set of the brain recipe."""

    batch: PositiveInt = 1
    steps: PositiveInt = 200
    resolution: int = 64  # voxels a side of the cube that every case is brought to
    patch: int = 0  # voxels a side of the cut-outs to train on; 0: whole volumes
    base: PositiveInt = 8  # channels at full resolution; each level below has twice as many
    learning_rate: PositiveFloat = 2e-3
    augment: bool = True
    labels: str = ""  # of a user's label files, as 0:background,1:core,2:oedema,4:enhancing; empty: the values found there


class UNet3dBrain(KerasRecipe):
    """A class for every voxel."""

    Settings = BrainSettings
    inputs = ("volumes",)
    metric = "dice"
    higher_is_better = True

    def load_data(self, source: Path | None) -> Data:
        """The cases of a folder, or the averaged head."""
        settings = self.settings
        self._check_edges()
        if source is None:
            cases: tuple[Case, ...] = (Mni152(),)
            labels: tuple[str, ...] = LABELS
            what = "MNI152, an average of 152 healthy heads"
        else:
            named = _parse_labels(settings.labels)
            found = find_cases(source, tuple(named))
            labels = tuple(named.values()) or tuple(str(value) for value in found[0].values)
            cases, what = found, f"{source} with the labels {', '.join(map(str, found[0].values))}, cases: {len(found)}"
            if unlabelled := list_unlabelled(source):
                what += f", scans without labels left out: {len(unlabelled)} ({unlabelled[0].name}, ...)"
        train, held_out = split_cases(cases, settings.resolution, labels)
        if len(cases) == 1:
            judged = f"{len(HELD_OUT_SLABS)} of {NUM_SLABS} slabs of it held out"
        else:
            judged = f"{len(held_out)} of them held out"
        return Data(
            train=VariedViews(train, settings.patch, settings.augment),
            held_out=held_out,
            labels=labels,
            source=f"{what}, as {settings.resolution}^3 voxels, {judged}",
        )

    def build_model(self, data: Data) -> Any:
        """The U-Net, compiled."""
        import keras

        from tensorferry.recipes.models.keras.unet3d import unet3d

        num_channels: int = data.train.num_channels  # type: ignore[attr-defined]
        model = unet3d(num_channels, len(data.labels), self.settings.base, _NUM_LEVELS)
        model.compile(
            optimizer=keras.optimizers.Adam(self.settings.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=UNKNOWN),
            jit_compile=False,
        )
        return model

    def evaluate(self, predict: Predict, samples: Samples) -> Mapping[str, float]:
        """Dice of every class but the first, the mean over the cases that have it, and the mean of these."""
        volumes = cast(WholeVolumes, samples)
        rows = []
        for index in range(len(volumes)):
            whole = volumes.read(index, np.random.default_rng(index))
            found = find_classes(predict, whole["volumes"], self.settings.patch)
            rows.append(compute_dice(found, whole["classes"], len(volumes.labels))[1:])
        by_class = np.ma.masked_invalid(rows).mean(axis=0)
        named = {
            f"dice_{label}": float(dice)
            for label, dice in zip(volumes.labels[1:], by_class, strict=True)
            if dice is not np.ma.masked
        }
        return {"dice": float(np.mean(list(named.values()))) if named else 0.0} | named

    def illustrate(self, predict: Predict, data: Data) -> bytes:
        """A slice of the first case that is held out: scan, truth and what was found."""
        held_out = cast(WholeVolumes, data.held_out)
        whole = replace(held_out, slabs=()).read(0, np.random.default_rng(0))
        found = find_classes(predict, whole["volumes"], self.settings.patch)
        slab = held_out.slabs[-1] if held_out.slabs else NUM_SLABS // 2
        place = (2 * slab + 1) * held_out.edge // (2 * NUM_SLABS)
        return draw_slice(whole["volumes"], whole["classes"], found, place, data.labels)

    def describe_transform(self, data: Data) -> dict[str, Any] | None:
        """From a NIfTI file to the cube; a network that knows patches alone has to be asked patch by patch, by its caller."""
        if self.settings.patch:
            return None
        num_channels: int = data.train.num_channels  # type: ignore[attr-defined]
        return {"kind": "volume", "input": self.inputs[0], "edge": self.settings.resolution, "channels": num_channels}

    def _check_edges(self) -> None:
        settings = self.settings
        for name, edge in (("resolution", settings.resolution), ("patch", settings.patch)):
            if edge % _EDGE_STEP or edge < 0 or (name == "resolution" and edge < 2 * _EDGE_STEP):
                raise BadRecipe(f"{name}={edge} cannot be halved {_NUM_LEVELS - 1} times; use a multiple of {_EDGE_STEP}")
        if settings.patch > settings.resolution:
            raise BadRecipe(f"patch={settings.patch} is larger than resolution={settings.resolution}; use a smaller one")


def _parse_labels(text: str) -> dict[int, str]:
    """The names of label values.

    >>> _parse_labels("0:background,4:enhancing")
    {0: 'background', 4: 'enhancing'}
    """
    named = {}
    for part in filter(None, text.split(",")):
        value, colon, name = part.partition(":")
        if not colon or not value.strip().isdecimal() or not name.strip():
            raise BadRecipe(f"cannot read {part!r} of labels={text!r}; write value:name pairs as in 0:background,1:tumour")
        named[int(value)] = name.strip()
    if len(named) == 1:
        raise BadRecipe(f"labels={text!r} names only one class; name at least two")
    return named
