"""Names as DNS and registries allow them."""

import re

from tensorferry.errors import BadOption

MAX_LABEL_LENGTH = 63
_MAX_CHART_NAME_LENGTH = 40  # what is left of 63 once a release's name and a pod's hash are added
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_IMAGE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9._-]*(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def is_label(text: str) -> bool:
    """Whether DNS allows it as one part of a name.

    >>> is_label("reviews-2"), is_label("Reviews"), is_label("-reviews"), is_label("re_views")
    (True, False, False, False)
    """
    return len(text) <= MAX_LABEL_LENGTH and _LABEL.fullmatch(text) is not None


def check_name(name: str, what: str) -> str:
    """The name, where DNS allows it for objects of a cluster; raises BadOption with one that would do."""
    if is_label(name) and len(name) <= _MAX_CHART_NAME_LENGTH and name[0].isalpha():
        return name
    fit = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:_MAX_CHART_NAME_LENGTH].strip("-") or "models"
    raise BadOption(
        f"{what} cannot be called {name!r}: DNS allows small letters, digits and hyphens, at most {_MAX_CHART_NAME_LENGTH}, "
        f"a letter first; say --name {fit}"
    )


def split_image(image: str) -> dict[str, str]:
    """The repository, tag and digest of an image's name; raises BadOption.

    >>> split_image("registry.example.com:5000/ml/reviews:1.2")
    {'repository': 'registry.example.com:5000/ml/reviews', 'tag': '1.2', 'digest': ''}
    """
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise BadOption(f"{image!r} is no name of an image; write it as registry.example.com/team/name:tag")
    return {key: value or "" for key, value in found.groupdict().items()}
