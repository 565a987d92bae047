"""Models and trainers that nobody here wrote keep their bits and their budget; `make test-outside` runs them.

Each trains in fresh processes whose memory is watched from outside: plain, at half of plain's peak, and at the budget that a
refusal names. The run ends with a table of all of them.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest
from outside_process import Watched, train

pytestmark = pytest.mark.timeout(1800)

PACKAGES = {  # by the function in one of the files outside_*.py: what it needs
    "bert": "transformers",
    "gpt2": "transformers",
    "llama": "transformers",
    "llama_lora": "peft",
    "mixtral": "transformers",
    "t5": "transformers",
    "vit": "transformers",
    "whisper": "transformers",
    "convnext": "transformers",
    "clip": "transformers",
    "wav2vec2": "transformers",
    "hf_trainer": "accelerate",
    "lightning": "lightning",
    "fsdp2": "transformers",
    "diffusers_unet": "diffusers",
    "monai_unet": "monai",
    "monai_dynunet": "monai",
    "monai_segresnet": "monai",
    "monai_swinunetr": "monai",
    "monai_densenet": "monai",
    "pyg_gcn": "torch_geometric",
    "pyg_gat": "torch_geometric",
    "packed_lstm": None,
    "seq2seq": None,
    "gan": None,
    "keras_efficientnet": "keras",
    "keras_resnet50": "keras",
    "keras_unet": "keras",
    "keras_gan": "keras",
    "tf_convnext": "tensorflow",
    "tf_densenet": "tensorflow",
    "tf_efficientnet": "tensorflow",
    "tf_efficientnet_v2": "tensorflow",
    "tf_gan": "tensorflow",
    "tf_gru": "tensorflow",
    "tf_lstm": "tensorflow",
    "tf_mobilenet_v3": "tensorflow",
    "tf_nasnet": "tensorflow",
    "tf_transformer": "tensorflow",
}
NUM_STEPS = 5  # two are recorded, the others follow plans
TINY_NBYTES = 8 * 2**20  # nothing trains in it
each_model = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(package and not find_spec(package), reason=f"there is no {package} here"))
        for name, package in PACKAGES.items()
    ],
)


@cache
def plain(name: str) -> Watched:
    """Plain training, once."""
    return train(name, NUM_STEPS)


@each_model
def test_half_of_plain_is_enough_or_refused_before_it_is_passed(name: str, add_row: Callable[..., None]) -> None:
    budget_nbytes = plain(name).peak_nbytes // 2
    half = train(name, NUM_STEPS, budget_nbytes)
    add_row(name, "half", plain(name), half, budget_nbytes)
    assert half.peak_nbytes <= budget_nbytes, half.refused
    if not half.refused:
        assert half.differing(plain(name)) == []


@each_model
def test_the_budget_that_a_refusal_names_trains(name: str, add_row: Callable[..., None]) -> None:
    refused = train(name, NUM_STEPS, TINY_NBYTES)
    if refused.smallest_nbytes is None:
        pytest.skip(f"none was named: {refused.refused}")
    named = train(name, NUM_STEPS, refused.smallest_nbytes)
    add_row(name, "named", plain(name), named, refused.smallest_nbytes)
    assert named.refused == ""
    assert named.peak_nbytes <= refused.smallest_nbytes
    assert named.differing(plain(name)) == []
