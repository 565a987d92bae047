"""What this machine computes in a precision, as TensorFlow calls it."""

import statistics
import time

import tensorflow as tf

_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
_WIDTH = 1024
_NUM_TIMES = 9


def measure_flops(precision: str) -> float:
    """Flops a second of a matrix product in that precision, on the device that TensorFlow trains on."""
    left, right = (tf.ones((_WIDTH, _WIDTH), _DTYPES[precision]) for _ in range(2))
    _read_one(tf.linalg.matmul(left, right))  # the first time also makes the kernel
    seconds = []
    for _ in range(_NUM_TIMES):
        start = time.perf_counter()
        _read_one(tf.linalg.matmul(left, right))
        seconds.append(time.perf_counter() - start)
    return 2 * _WIDTH**3 / statistics.median(seconds)


def has_accelerator() -> bool:
    """Whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _read_one(product: tf.Tensor) -> None:
    """Wait for a product: only what is read back is certainly done."""
    product[0, 0].numpy()
