"""Images and volumes: Hugging Face's, diffusers' and MONAI's networks."""

from collections.abc import Callable

import torch
from outside_training import Loop, Training
from torch import nn


def vit() -> Training:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=192, num_hidden_layers=4, num_attention_heads=6, intermediate_size=768, image_size=128)
    model = ViTForImageClassification(config)
    images, labels = torch.randn(16, 3, 128, 128), torch.randint(0, 2, (16,))
    return Loop(model, lambda: model(pixel_values=images, labels=labels).loss)


def convnext() -> Training:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    model = ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2]))
    images, labels = torch.randn(8, 3, 160, 160), torch.randint(0, 2, (8,))
    return Loop(model, lambda: model(pixel_values=images, labels=labels).loss)


def diffusers_unet() -> Training:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(64, 128, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    )
    images, times, noise = torch.randn(8, 3, 32, 32), torch.randint(0, 1000, (8,)), torch.randn(8, 3, 32, 32)
    return Loop(model, lambda: nn.functional.mse_loss(model(images, times).sample, noise))


def _monai(make_model: Callable[[], nn.Module], channels: int = 1, edge: int = 64, num_classes: int = 2) -> Training:
    from monai.losses import DiceCELoss

    model, dice = make_model(), DiceCELoss(to_onehot_y=True, softmax=True)
    volumes, labels = torch.randn(1, channels, edge, edge, edge), torch.randint(0, num_classes, (1, 1, edge, edge, edge))
    return Loop(model, lambda: dice(model(volumes), labels))


def monai_unet() -> Training:
    from monai.networks.nets import UNet

    return _monai(lambda: UNet(3, 1, 2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2))


def monai_dynunet() -> Training:
    from monai.networks.nets import DynUNet

    kernels, strides = [3, 3, 3, 3], [1, 2, 2, 2]
    return _monai(lambda: DynUNet(3, 1, 2, kernels, strides, strides[1:], filters=[16, 32, 64, 128]))


def monai_segresnet() -> Training:
    from monai.networks.nets import SegResNet

    return _monai(lambda: SegResNet(3, init_filters=8, in_channels=1, out_channels=2))


def monai_swinunetr() -> Training:
    from monai.networks.nets import SwinUNETR

    return _monai(lambda: SwinUNETR(1, 2, feature_size=12), edge=64)


def monai_densenet() -> Training:
    """Every layer reads all before it."""
    from monai.networks.nets import DenseNet121

    model = DenseNet121(spatial_dims=3, in_channels=1, out_channels=4)
    volumes, labels = torch.randn(2, 1, 64, 64, 64), torch.randint(0, 4, (2,))
    return Loop(model, lambda: nn.functional.cross_entropy(model(volumes), labels), torch.optim.SGD)
