"""Take the pictures of the documentation from real pages: a training under a budget, a run, an estimate.

    python docs/pictures/make.py

It needs the recipes' extra and a Chromium; each picture is of a page that a user would get.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# name of the picture, and the height of the part of the page that it shows
TIMELINE, RUN, ESTIMATE = ("timeline", 900), ("run", 900), ("estimate", 820)

_TRAINING = """
import torch
import tensorferry as ferry
from tensorferry.recipes.models.unet3d import UNet3d, compute_loss, make_batch

model = UNet3d()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
volumes, classes = make_batch(edge=64)
with ferry.large_model(model, budget="240MiB") as big:
    for step in range(6):
        compute_loss(model, volumes, classes).backward()
        optimizer.step()
        optimizer.zero_grad()
big.report().save("timeline.html")
"""


def main() -> None:
    """Make the pages in a folder of their own, and a picture of each."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium here; install one and run this again")
    with tempfile.TemporaryDirectory(prefix="ferry-pictures-") as name:
        folder = Path(name)
        ferry = [sys.executable, "-m", "tensorferry.cli"]
        cards = ["--on", "v100-16gb-nvlink2", "--on", "v100-16gb-pcie3"]
        for command in (
            [sys.executable, "-c", _TRAINING],
            [*ferry, "train", "wide-deep", "--steps", "200", "--seed", "0", "--out", "run"],
            [*ferry, "estimate", "resnet50", "--batch", "512", *cards, "--html", "estimate.html"],
        ):
            subprocess.run(command, cwd=folder, check=True)
        for (picture, height), page in ((TIMELINE, "timeline.html"), (RUN, "run/report.html"), (ESTIMATE, "estimate.html")):
            _take(browser, folder / page, HERE / f"{picture}.png", height, folder / f"profile-{picture}")


def _take(browser: str, page: Path, picture: Path, height: int, profile: Path) -> None:
    switches = ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
    if os.geteuid() == 0:
        switches.append("--no-sandbox")  # as root there is none
    size = ["--force-device-scale-factor=1.5", f"--window-size=1200,{height}", f"--user-data-dir={profile}"]
    subprocess.run([browser, *switches, *size, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
