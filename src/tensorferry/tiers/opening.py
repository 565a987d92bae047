"""From the word a user writes to a tier."""

from pathlib import Path

from tensorferry.errors import BadTier
from tensorferry.plan.machine import Machine, TierSpeed
from tensorferry.tiers.files import FileTier
from tensorferry.tiers.folder import best_folder, check_folder
from tensorferry.tiers.tier import Tier

SHM_FOLDER = Path("/dev/shm")
_CHOICES = "'auto', 'disk', 'disk:/path', 'shm', or on an accelerator 'pinned'"


def open_tier(text: str, *, measured: Machine | None = None) -> Tier:
    """The tier that `text` names: "auto", "disk", "disk:/path" or "shm". Close it after use.

    `measured` says how fast it is before the first copy; without it the tier measures itself when asked.
    """
    if not isinstance(text, str):
        raise BadTier(f"expected a tier as text, received {text!r}; choose {_CHOICES}")
    kind, colon, path = text.strip().partition(":")
    if kind == "disk" and path:
        folder = Path(path).expanduser().absolute()
    elif kind in ("auto", "disk") and not colon:
        folder = best_folder()
    elif kind == "shm" and not colon:
        folder = SHM_FOLDER
    elif kind == "pinned":
        raise BadTier(
            "pinned memory is where an accelerator copies to, and here the device is the CPU; use 'auto', 'disk:/path' or 'shm'"
        )
    else:
        raise BadTier(f"unknown tier {text!r}; choose {_CHOICES}")
    name = "shm" if kind == "shm" else "disk"
    check_folder(folder, name)
    return FileTier(name, folder, known=_known(measured, name, folder))


def _known(measured: Machine | None, name: str, folder: Path) -> TierSpeed | None:
    if measured is None:
        return None
    # a machine's disk was measured in the best folder, and another folder may be on another disk
    if name == "disk" and folder.stat().st_dev != best_folder().stat().st_dev:
        return None
    try:
        return measured.tier(name)
    except KeyError:
        return None
