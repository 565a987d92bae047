"""The README of a chart, made from its values: every value has a comment, and the comments are the table."""

import re
from collections.abc import Iterator, Sequence

from tensorferry.text import printable

_LINE = re.compile(r"(?P<indent> *)(?:# ?(?P<comment>.*)|(?P<key>[A-Za-z]+):(?: (?P<value>.*))?)")

_STEPS = {
    "image": "The models are in the server's image, so both are built and rolled out as one:\n\n"
    "```sh\n"
    "ferry deploy image --models models/ --to Containerfile\n"
    "buildah build -t registry.example.com/{name}:1 -f Containerfile .\n"
    "buildah push registry.example.com/{name}:1\n"
    "helm install {name} . --set image.repository=registry.example.com/{name} --set image.tag=1\n"
    "```",
    "pvc": "The models are in a volume: fill the claim that `models.claim` names, and install:\n\n"
    "```sh\nhelm install {name} . --set image.repository=registry.example.com/{name}\n```",
    "oci": "The models are in an image of their own, which `models.image` names:\n\n"
    "```sh\nhelm install {name} . --set image.repository=registry.example.com/{name}\n```",
    "url": "The models are in a bucket, which the server reads itself, with credentials from a secret or from the pods' role:\n\n"
    "```sh\nhelm install {name} . --set image.repository=registry.example.com/{name} --set models.credentialsSecret=bucket\n```",
}


def write_readme(name: str, models: Sequence[str], values: str, source: str) -> str:
    """The page beside a chart."""
    rows = "\n".join(f"| `{path}` | `{value or '-'}` | {comment} |" for path, value, comment in list_values(values) if comment)
    return f"""# {name}

A Helm chart that serves {", ".join(f"`{printable(each)}`" for each in models)} with TensorFerry over the Open Inference
Protocol: REST on 8000, gRPC on 8001, metrics and control calls on 8002. `ferry deploy` wrote it, and made this page from
`values.yaml`.

{_STEPS[source].format(name=name)}

`helm test {name}` asks the server whether it is ready and, where no keys are set, whether every model is.

## Values

| value | default | what it is |
|---|---|---|
{rows}
"""


def list_values(text: str) -> Iterator[tuple[str, str, str]]:
    """Every value of a values.yaml: its path, its default (empty for a group), and the comment right above it."""
    path: list[str] = []
    comment = ""
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None or not line.strip():
            comment = ""
            continue
        if found["key"] is None:
            comment = f"{comment} {found['comment']}".strip()
            continue
        path[len(found["indent"]) // 2 :] = [found["key"]]
        yield ".".join(path), found["value"] or "", comment.replace("|", "\\|")
        comment = ""
