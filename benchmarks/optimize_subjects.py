"""The models of `benchmarks/optimize.py` and real samples for them, from packages that are installed; nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorferry.recipes import efficientnet_finetune
from tensorferry.recipes.data.python_docs import read_topics
from tensorferry.recipes.models import minilm, resnet, unet3d

Samples = dict[str, NDArray[Any]]
NUM_SAMPLES = 200  # half of them calibrate int8, half are compared


@dataclass(frozen=True)
class Subject:
    """A model, what it is asked, and what counts as the same answer."""

    make: Callable[[], nn.Module]
    samples: Callable[[], Samples]
    judge: str
    min_agreement: float = 0.99
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


def _sentences(length: int = 128) -> Samples:
    tokenizer = minilm.load_tokenizer()
    tokenizer.enable_truncation(length)
    texts = [text for text, _ in read_topics()]
    tokens = [tokenizer.encode(text).ids for text in texts[:: max(1, len(texts) // NUM_SAMPLES)][:NUM_SAMPLES]]
    ids, mask = np.zeros((len(tokens), length), np.int64), np.zeros((len(tokens), length), np.int64)
    for at, row in enumerate(tokens):
        ids[at, : len(row)], mask[at, : len(row)] = row, 1
    return {"ids": ids, "mask": mask}


def _photos(edge: int = 224) -> NDArray[np.float32]:
    """Parts of two photographs, as ImageNet's networks of this kind want them."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    photos = [Image.fromarray(image) for image in load_sample_images().images]
    found = []
    for at in range(NUM_SAMPLES):
        photo, size = photos[at % len(photos)], int(rng.integers(160, 420))
        left, top = int(rng.integers(photo.width - size)), int(rng.integers(photo.height - size))
        found.append(np.asarray(photo.crop((left, top, left + size, top + size)).resize((edge, edge))))
    images = np.stack(found).transpose(0, 3, 1, 2).astype(np.float32)
    return (images - np.float32(127)) / np.float32(128)


def _lite0() -> nn.Module:
    network = efficientnet_finetune.make_efficientnet(1000, 224)
    efficientnet_finetune.load_weights(network, keep_head=True)
    return network


def _resnet50() -> nn.Module:
    torch.manual_seed(0)
    model = resnet.resnet50().train()
    with torch.no_grad():  # random weights with the statistics of real images: the layers' scales are then as in a trained one
        for _ in range(4):
            model(torch.from_numpy(_photos()[:16]))
    return model


def _keras_resnet50() -> Any:
    from tensorferry.recipes.models.keras import resnet as keras_resnet

    return keras_resnet.resnet50()


def _unet3d() -> nn.Module:
    torch.manual_seed(0)
    return unet3d.UNet3d()


def _volumes() -> Samples:
    return {"x": unet3d.make_batch(edge=64, num_volumes=8)[0].numpy()}


def _toy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


SUBJECTS = {
    "minilm": Subject(Sentence, _sentences, "nearest"),
    "resnet50": Subject(_resnet50, lambda: {"x": _photos()}, "top1", rival=_keras_resnet50),
    "lite0": Subject(_lite0, lambda: {"inputs": _photos()}, "top1", min_agreement=0.95),
    "unet3d": Subject(_unet3d, _volumes, "top1"),
    "toy": Subject(_toy, lambda: {"input": np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)}, "top1"),
}
