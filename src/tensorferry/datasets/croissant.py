"""A dataset's card as a Croissant 1.0 description: JSON-LD that search engines and other libraries read."""

from typing import Any

from tensorferry.datasets.catalog import DatasetCard

_TYPES = {
    "number": "sc:Float",
    "integer": "sc:Integer",
    "boolean": "sc:Boolean",
    "label": "sc:Integer",
    "image": "sc:ImageObject",
}
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "recordSet": "cr:recordSet",
    "sc": "https://schema.org/",
    "source": "cr:source",
}


def describe_croissant(card: DatasetCard) -> dict[str, Any]:
    """The description; files are named as they lie in the package that brings them."""
    files = [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": card.paths[name],
            "encodingFormat": _encoding(card.paths[name]),
            "sha256": checksum,
        }
        for name, checksum in card.sha256.items()
    ]
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"rows/{name}",
            "name": name,
            "dataType": _TYPES.get(kind, "sc:Text"),
            **({"source": {"fileObject": {"@id": files[0]["@id"]}, "extract": {"column": name}}} if files else {}),
        }
        for name, kind in card.columns.items()
    ]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": card.name,
        "description": f"{card.title}. {card.origin}.",
        "license": card.licence,
        "citeAs": card.origin,
        "distribution": files,
        "recordSet": [{"@type": "cr:RecordSet", "@id": "rows", "name": "rows", "field": fields}] if fields else [],
    }


def _encoding(path: str) -> str:
    kinds = {".csv": "text/csv", ".json": "application/json", ".parquet": "application/x-parquet", ".gz": "application/gzip"}
    return next((kind for suffix, kind in kinds.items() if suffix in path), "application/octet-stream")
