"""What this machine computes in a precision, as TensorFlow calls it."""

import time
from dataclasses import dataclass

import tensorflow as tf

_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
_KERNEL_EDGE = 3
_MAX_TIMES = 5
_ENOUGH_SECONDS = 0.2


@dataclass(frozen=True)
class _Work:
    """A matrix product, and a convolution with its gradients."""

    rows: int
    width: int
    num_images: int
    edge: int
    num_channels: int

    @property
    def flops(self) -> int:
        convolution = 2 * self.num_images * self.edge**2 * _KERNEL_EDGE**2 * self.num_channels**2
        return 2 * self.rows * self.width**2 + 3 * convolution


# enough to keep the device busy, and little on a CPU, where a precision may have no fast kernel
_CPU_WORK = _Work(rows=128, width=1024, num_images=4, edge=32, num_channels=64)
_ACCELERATOR_WORK = _Work(rows=4096, width=4096, num_images=64, edge=56, num_channels=64)


def measure_flops(precision: str) -> float:
    """Flops a second in that precision, on the device that TensorFlow trains on.

    Where a processor does not compute in bf16 by itself, its products may be as fast as in fp32, and the gradients of its
    convolutions are many times slower: so both are measured.
    """
    work, dtype = _ACCELERATOR_WORK if has_accelerator() else _CPU_WORK, _DTYPES[precision]
    left, right = (tf.ones((num, work.width), dtype) for num in (work.rows, work.width))
    images = tf.ones((work.num_images, work.edge, work.edge, work.num_channels), dtype)
    kernel = tf.ones((_KERNEL_EDGE, _KERNEL_EDGE, work.num_channels, work.num_channels), dtype)

    def compute() -> None:
        _read_one(tf.linalg.matmul(left, right))
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            found = tf.nn.conv2d(images, kernel, 1, "SAME")
        for gradient in tape.gradient(found, [images, kernel]):
            _read_one(gradient)

    compute()  # the first time also makes the kernels
    seconds: list[float] = []
    while len(seconds) < _MAX_TIMES and sum(seconds) < _ENOUGH_SECONDS:
        start = time.perf_counter()
        compute()
        seconds.append(time.perf_counter() - start)
    return work.flops / min(seconds)  # others may use this machine too


def has_accelerator() -> bool:
    """Whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _read_one(computed: tf.Tensor) -> None:
    """Wait for a tensor: only what is read back is certainly done."""
    computed[(0,) * computed.shape.rank].numpy()
