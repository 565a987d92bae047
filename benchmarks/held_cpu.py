"""Benchmarks as on a CPU with fewer instructions than this one: what libraries are told, and what they say of it themselves.

oneDNN is in torch, TensorFlow and OpenVINO, and keeps to ONEDNN_MAX_CPU_ISA in all three. onnxruntime asks the CPU and nothing
else, but has no bf16 kernels for x86. So what runs is what a CPU without bf16 would run; clock rates, caches and the width of the
units stay those of this one.

AVX2 alone cannot be imitated so: onnxruntime takes AVX-512 whatever it is told, and OpenVINO does where it multiplies in fp32 by
the same library's kernels, and in its norms. Such figures need such a CPU.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

_ENTERED = "FERRY_BENCHMARK_CPU"  # tells the program that it was started again with the variables
_ISA = re.compile(r"onednn_verbose.*,cpu,isa:(.*)")
_PROBES = {
    "torch": "import torch; torch.conv2d(torch.ones(4, 64, 56, 56), torch.ones(64, 64, 3, 3))",
    "TensorFlow": "import tensorflow as tf; tf.nn.conv2d(tf.ones((1, 99, 99, 8)), tf.ones((3, 3, 8, 8)), 1, 'SAME')",
}


@dataclass(frozen=True)
class HeldCpu:
    """A lesser CPU: what it is called, what makes libraries take this one for it, and which kernels it could not run."""

    title: str
    variables: Mapping[str, str] = field(default_factory=dict)
    forbidden: str = "(?!)"  # in the name of a kernel or its precision; this matches none


CPUS = {
    "itself": HeldCpu("as it is"),
    "vnni": HeldCpu("held to AVX-512 and VNNI, without bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, "bf16|amx|avx10"),
}


def enter(name: str) -> HeldCpu:
    """The CPU of that name; libraries read their variables as they load, so the program starts again with them, once."""
    cpu = CPUS[name]
    if cpu.variables and os.environ.get(_ENTERED) != name:
        _start_again({**os.environ, **cpu.variables, _ENTERED: name})
    return cpu


def _start_again(environment: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def find_forbidden(cpu: HeldCpu, compiled: Any) -> list[str]:
    """The kernels of a compiled OpenVINO model that such a CPU could not run, as the model itself reports them."""
    return sorted({kernel for kernel in list_kernels(compiled) if re.search(cpu.forbidden, kernel)})


def list_kernels(compiled: Any) -> Iterator[str]:
    """What runs each op of a compiled OpenVINO model, with its precision, as "brgconv_avx512_f32"."""
    for op in compiled.get_runtime_model().get_ops():
        told = op.get_rt_info()
        if "primitiveType" in told:
            yield told["primitiveType"].astype(str).lower()


def tell_isa() -> dict[str, str]:
    """What oneDNN in torch and in TensorFlow says of the instructions that it takes, each in a process of its own."""
    told = {}
    for name, probe in _PROBES.items():
        environment = {**os.environ, "ONEDNN_VERBOSE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True, check=False)
        told[name] = ", ".join(sorted(set(_ISA.findall(done.stdout)))) or "oneDNN said nothing"
    return told
