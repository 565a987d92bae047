"""What this machine computes in a precision, as TensorFlow calls it."""

import time

import tensorflow as tf

_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
# rows and width of a product: enough to keep the device busy, and few rows on a CPU, where a precision may have no fast kernel
_CPU_SHAPE = (128, 1024)
_ACCELERATOR_SHAPE = (4096, 4096)
_MAX_TIMES = 9
_ENOUGH_SECONDS = 0.5


def measure_flops(precision: str) -> float:
    """Flops a second of a matrix product in that precision, on the device that TensorFlow trains on."""
    rows, width = _ACCELERATOR_SHAPE if has_accelerator() else _CPU_SHAPE
    left, right = (tf.ones((num, width), _DTYPES[precision]) for num in (rows, width))
    _read_one(tf.linalg.matmul(left, right))  # the first time also makes the kernel
    seconds: list[float] = []
    while len(seconds) < _MAX_TIMES and sum(seconds) < _ENOUGH_SECONDS:
        start = time.perf_counter()
        _read_one(tf.linalg.matmul(left, right))
        seconds.append(time.perf_counter() - start)
    return 2 * rows * width**2 / min(seconds)  # others may use this machine too


def has_accelerator() -> bool:
    """Whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _read_one(product: tf.Tensor) -> None:
    """Wait for a product: only what is read back is certainly done."""
    product[0, 0].numpy()
