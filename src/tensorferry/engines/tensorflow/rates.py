"""What this machine computes in a precision, as TensorFlow calls it."""

import time

import tensorflow as tf

_DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}
_WIDTH = 1024
_NUM_TIMES = 5
# where no kernel is made for a precision, a product of the full width takes seconds; a small one tells that as well
_GLANCE_WIDTH = 192
_SLOW_FLOPS = 5e9


def measure_flops(precision: str) -> float:
    """Flops a second of a matrix product in that precision, on the device that TensorFlow trains on."""
    glance = _measure(precision, _GLANCE_WIDTH)
    return glance if glance < _SLOW_FLOPS else _measure(precision, _WIDTH)


def _measure(precision: str, width: int) -> float:
    left, right = (tf.ones((width, width), _DTYPES[precision]) for _ in range(2))
    _read_one(tf.linalg.matmul(left, right))  # the first time also makes the kernel
    seconds = []
    for _ in range(_NUM_TIMES):
        start = time.perf_counter()
        _read_one(tf.linalg.matmul(left, right))
        seconds.append(time.perf_counter() - start)
    return 2 * width**3 / min(seconds)  # others may use this machine too


def has_accelerator() -> bool:
    """Whether TensorFlow sees a device other than the CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _read_one(product: tf.Tensor) -> None:
    """Wait for a product: only what is read back is certainly done."""
    product[0, 0].numpy()
