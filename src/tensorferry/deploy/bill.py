"""A bill of materials for an image, in CycloneDX 1.6: what is installed into it, in which versions, under which licences.

Licences are those that the packages installed here state. What the base image holds is not in it. There is no date and no
random number in it either, so the same packages give the same file.
"""

import json
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from tensorferry import __version__
from tensorferry.deploy.packages import Package
from tensorferry.text import printable

SUFFIX = ".cdx.json"
_CLASSIFIER = "License :: "
_MAX_LENGTH = 120  # of a licence's name; some packages put the whole text where the name belongs


def write_bill(packages: Iterable[Package], models: Sequence[str], title: str) -> str:
    """The bill as JSON."""
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": "image", "name": title, "version": __version__},
            "tools": {"components": [{"type": "application", "name": "tensorferry", "version": __version__}]},
        },
        "components": [
            *(_describe_package(each) for each in packages),
            *({"type": "machine-learning-model", "bom-ref": f"model:{each}", "name": printable(each)} for each in models),
        ],
    }
    return json.dumps(bill, indent=1) + "\n"


def _describe_package(package: Package) -> dict[str, Any]:
    version = package.version.partition("+")[0]
    place = f"pkg:pypi/{package.name}@{version}"
    described = {"type": "library", "bom-ref": place, "name": package.name, "version": version, "purl": place}
    found = read_licence(package.name)
    return (
        described
        | ({"licenses": [found]} if found else {})
        | ({"hashes": [{"alg": "SHA-256", "content": package.digest}]} if package.digest else {})
    )


def read_licence(name: str) -> dict[str, Any] | None:
    """What an installed package says of its licence: an SPDX expression where it has one, otherwise a name; None: nothing."""
    try:
        stated: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := stated.get("License-Expression"):
        return {"expression": expression.strip()}
    classified = [each.rpartition(" :: ")[2] for each in stated.get_all("Classifier", []) if each.startswith(_CLASSIFIER)]
    names = [each for each in classified if each != "OSI Approved"] or (stated.get("License") or "").strip().splitlines()[:1]
    return {"license": {"name": printable(" AND ".join(names))[:_MAX_LENGTH]}} if any(names) else None
