"""The models of `benchmarks/optimize.py`, all of them trained, and real samples for them; nothing is downloaded.

What is calibrated on and what is judged on are other texts, other photographs, or other views of one head, judged only by labels
that the network was not trained on. So an interval tells how much views of this head vary, and not how much heads do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from optimize_brain import make_brain_unet, read_views
from optimize_nsfw import OpenNsfw, make_keras_open_nsfw
from optimize_photos import NUM_CALIBRATION, Prepare, as_lite0, as_open_nsfw, read_labelled, read_others, take_views
from tensorferry.recipes import efficientnet_finetune
from tensorferry.recipes.data.python_docs import read_topics
from tensorferry.recipes.models import minilm

Samples = dict[str, NDArray[Any]]
NUM_JUDGED = 500  # of texts and views: enough to tell 99 % from 98 %
_TEXT_LENGTH = 128
_NUM_VOLUMES = 12  # that the U-Net is judged on, and as many to calibrate on; each has 262,144 voxels


@dataclass(frozen=True)
class SubjectData:
    """What a model is asked, what int8 is calibrated on, and the right answers where they are known."""

    judged: Samples
    calibration: Samples
    targets: NDArray[Any] | None = None


@dataclass(frozen=True)
class Subject:
    """A trained model, what it is asked, and what counts as the same answer."""

    make: Callable[[Path], Any]  # a module, a Keras model, or a path in this empty folder
    data: Callable[[], SubjectData]
    judge: str
    wanted: float  # times faster than the better of PyTorch and TensorFlow the chosen engine is to be
    rival: Callable[[], Any] | None = None  # the same network in Keras, whose SavedModel may be the faster original


class Sentence(nn.Module):
    """MiniLM as it is used: the mean of the tokens' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = minilm.make_encoder()
        minilm.load_weights(self.encoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """One vector a text."""
        weights = mask[..., None].float()
        return (self.encoder(ids, mask) * weights).sum(1) / weights.sum(1)


def _split_texts(texts: list[list[int]]) -> SubjectData:
    """Every so many of the texts, in turns to be judged on and to calibrate on."""
    num = NUM_JUDGED + NUM_CALIBRATION
    order = np.random.default_rng(0).permutation(len(texts))[:num]
    ids, mask = np.zeros((num, _TEXT_LENGTH), np.int64), np.zeros((num, _TEXT_LENGTH), np.int64)
    for row, at in enumerate(order):
        ids[row, : len(texts[at])], mask[row, : len(texts[at])] = texts[at], 1
    return SubjectData({"ids": ids[:NUM_JUDGED], "mask": mask[:NUM_JUDGED]}, {"ids": ids[NUM_JUDGED:], "mask": mask[NUM_JUDGED:]})


def _sentences() -> SubjectData:
    """Single sentences, 20 tokens each in the middle: most of the 128 places are empty."""
    tokenizer = minilm.load_tokenizer()
    tokenizer.enable_truncation(_TEXT_LENGTH)
    return _split_texts([tokenizer.encode(text).ids for text, _ in read_topics()])


def _passages() -> SubjectData:
    """Sentences of one topic on end, until 128 places are nearly full."""
    tokenizer = minilm.load_tokenizer()
    passages: list[list[int]] = []
    words: list[int] = []
    before = ""
    for text, topic in read_topics():
        if topic != before:
            words, before = [], topic
        first, *own, last = tokenizer.encode(text).ids
        words += own
        if len(words) >= _TEXT_LENGTH - 16:
            passages.append([first, *words[: _TEXT_LENGTH - 2], last])
            words = []
    return _split_texts(passages)


def _photos(name: str, prepare: Prepare, with_classes: bool, channels_last: bool = False) -> SubjectData:
    photos, classes = read_labelled()
    judged = take_views(photos[::2], NUM_JUDGED, prepare, 0)
    # with the eight others alone ranges come out too narrow for these: EfficientNet-lite0's answers were off by twice as much
    calibration = take_views(photos[1::2] + read_others(), NUM_CALIBRATION, prepare, 1)
    if channels_last:
        judged, calibration = (np.ascontiguousarray(np.moveaxis(each, 1, -1)) for each in (judged, calibration))
    return SubjectData({name: judged}, {name: calibration}, np.resize(classes[::2], NUM_JUDGED) if with_classes else None)


def _lite0() -> nn.Module:
    network = efficientnet_finetune.make_efficientnet(1000, 224)
    efficientnet_finetune.load_weights(network, keep_head=True)
    return network


def _save_open_nsfw(folder: Path) -> Path:
    make_keras_open_nsfw().export(folder / "open_nsfw", verbose=False)
    return folder / "open_nsfw"


def _keras_unet3d() -> Any:
    from tensorferry.recipes.models.keras import unet3d

    return unet3d.unet3d()


def _volumes() -> SubjectData:
    judged, classes = read_views(_NUM_VOLUMES, judging=True)
    return SubjectData({"x": judged}, {"x": read_views(_NUM_VOLUMES, judging=False)[0]}, classes)


def _toy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _toy_data() -> SubjectData:
    rows = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    return SubjectData({"input": rows[:16]}, {"input": rows[16:]})


SUBJECTS = {
    "minilm": Subject(lambda _: Sentence(), _passages, "nearest", 2.2),
    "minilm-sentences": Subject(lambda _: Sentence(), _sentences, "nearest", 2.2),
    "resnet50": Subject(
        lambda _: OpenNsfw(), lambda: _photos("images", as_open_nsfw, False), "close", 3.0, rival=make_keras_open_nsfw
    ),
    "resnet50-keras": Subject(
        lambda _: make_keras_open_nsfw(), lambda: _photos("images", as_open_nsfw, False, True), "close", 3.0
    ),
    "resnet50-savedmodel": Subject(_save_open_nsfw, lambda: _photos("images", as_open_nsfw, False, True), "close", 3.0),
    "lite0": Subject(lambda _: _lite0(), lambda: _photos("inputs", as_lite0, True), "top1", 5.5),
    "unet3d": Subject(lambda _: make_brain_unet(), _volumes, "top1", 6.0, rival=_keras_unet3d),
    "toy": Subject(lambda _: _toy(), _toy_data, "top1", 1.0),
}
