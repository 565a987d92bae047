"""Draw docs/roofline.svg: the ops of a step under a machine's roof, as the cost model places them.

    python benchmarks/roofline.py                       ResNet-50, batch 128, fp32 on a V100
    python benchmarks/roofline.py --out picture.svg     somewhere else

Every dot is an op of one training step: arithmetic for each byte it touches against the rate it is predicted to reach. Left of
the ridge memory is the limit, right of it arithmetic. The dots lie below the roof by the share that their kind of op reaches.
The dashed lines are what bytes allow that have to come over a link first.
"""

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path

from tensorferry.estimation.estimate import Study
from tensorferry.estimation.models import Input, find_model
from tensorferry.machine import Machine, find_machine, time_trace
from tensorferry.trace import Op

MODEL, BATCH, MACHINE = "resnet50", 128, "v100-16gb-nvlink2"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 74, 46, 18, 52
FROM_INTENSITY, TO_INTENSITY, FROM_RATE, TO_RATE = 0.05, 4000.0, 1e9, 5e13
LINKS = (("NVLink 2", "v100-16gb-nvlink2"), ("PCIe 3", "v100-16gb-pcie3"))
COLOURS = {"convolution": "#2f66ad", "matrix product": "#14706a", "norm": "#935c00", "other": "#7a559f"}


def main(argv: list[str] | None = None) -> int:
    """Capture, time, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "roofline.svg", metavar="FILE")
    options = parser.parse_args(argv)
    machine, model = find_machine(MACHINE), find_model(MODEL)
    study = Study(model, (Input((BATCH, 3, 224, 224)),), model.loss, model.optimizer, "fp32")
    trace = time_trace(study.traces(machine.kind).at(BATCH), machine)
    options.out.write_text(draw(machine, [op for op in trace.ops if op.seconds and op.touched_nbytes]))
    return 0


def draw(machine: Machine, ops: list[Op]) -> str:
    """The whole picture."""
    ridge = machine.flops_per_second["fp32"] / machine.memory_nbytes_per_second
    peak = machine.flops_per_second["fp32"]
    roof = [(FROM_INTENSITY, FROM_INTENSITY * machine.memory_nbytes_per_second), (ridge, peak), (TO_INTENSITY, peak)]
    seconds: dict[str, float] = defaultdict(float)
    dots = []
    for op in ops:
        kind = _kind(op)
        seconds[kind] += op.seconds
        # light ops have no arithmetic that counts: one operation for every four bytes stands for it
        flops = op.flops or op.touched_nbytes / 4
        x, y = _x(flops / op.touched_nbytes), _y(flops / op.seconds)
        radius = 2 + 60 * math.sqrt(op.seconds / math.pi)
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{COLOURS[kind]}" fill-opacity=".45"/>')
    total = sum(seconds.values())
    legend = "".join(
        f'<circle cx="{LEFT + 16}" cy="{TOP + 18 + 20 * i}" r="5" fill="{COLOURS[kind]}"/>'
        f'<text x="{LEFT + 28}" y="{TOP + 22 + 20 * i}">{kind}, {100 * seconds[kind] / total:.0f} % of the step</text>'
        for i, kind in enumerate(COLOURS)
        if seconds[kind]
    )
    line = " ".join(f"{_x(intensity):.1f},{_y(rate):.1f}" for intensity, rate in roof)
    title = f"One training step of {MODEL}, batch {BATCH}, fp32, on {machine.name}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img" aria-label="{title}"><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{title}</text>{_axes()}{"".join(dots)}'
        f'<polyline points="{line}" fill="none" stroke="#b3261e" stroke-width="2"/>'
        f'<text x="{_x(ridge):.0f}" y="{_y(peak) - 8:.0f}" fill="#b3261e">arithmetic: {peak / 1e12:.1f} TFLOP/s</text>'
        f"{_along('memory', machine.memory_nbytes_per_second, 1.0, '#b3261e')}{_links(peak)}{legend}</svg>\n"
    )


def _links(peak: float) -> str:
    """The roofs of bytes that have to come over a link first."""
    parts = []
    for name, machine in LINKS:
        rate = find_machine(machine).tiers[0].in_nbytes_per_second
        ends = [(FROM_INTENSITY, FROM_INTENSITY * rate), (min(TO_INTENSITY, peak / rate), min(peak, TO_INTENSITY * rate))]
        line = " ".join(f"{_x(intensity):.1f},{_y(flops):.1f}" for intensity, flops in ends)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#566474" stroke-width="1.5" stroke-dasharray="5 4"/>')
        parts.append(_along(name, rate, 4.0, "#566474"))
    return "".join(parts)


def _along(name: str, rate: float, intensity: float, colour: str) -> str:
    """A name that runs along its slope, just below it."""
    x, y = _x(intensity), _y(intensity * rate)
    angle = math.degrees(math.atan2(_y(10 * rate * intensity) - y, _x(10 * intensity) - x))
    place = f"translate({x:.1f} {y:.1f}) rotate({angle:.1f})"
    return f'<text transform="{place}" dy="16" fill="{colour}">{name}: {rate / 1e9:.3g} GB/s</text>'


def _kind(op: Op) -> str:
    kernel = op.name.rsplit(" ", 1)[-1]
    if op.flops:
        return "convolution" if "conv" in kernel else "matrix product"
    return "norm" if "norm" in kernel else "other"


def _axes() -> str:
    parts = []
    for power in range(-1, 4):
        x = _x(10.0**power)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#e1e5ea"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#566474">{10.0**power:g}</text>')
    for power, text in ((9, "0.001"), (10, "0.01"), (11, "0.1"), (12, "1"), (13, "10")):
        y = _y(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e1e5ea"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#566474">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 12}" text-anchor="middle">flops for each byte touched</text>')
    parts.append(f'<text transform="translate(22 {HEIGHT / 2:.0f}) rotate(-90)" text-anchor="middle">TFLOP/s predicted</text>')
    return "".join(parts)


def _x(intensity: float) -> float:
    share = math.log(max(intensity, FROM_INTENSITY) / FROM_INTENSITY) / math.log(TO_INTENSITY / FROM_INTENSITY)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(rate: float) -> float:
    share = math.log(max(rate, FROM_RATE) / FROM_RATE) / math.log(TO_RATE / FROM_RATE)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


if __name__ == "__main__":
    sys.exit(main())
