"""Feature columns: what a model sees of a table, told once.

from tensorferry import feature_columns as fc

wide = [fc.bucketized("age", [18, 27, 40, 65]), fc.crossed(["education", "occupation"], 1000)]
deep = [fc.numeric("hours_per_week"), fc.embedding("occupation", 8)]
"""

from tensorferry.feature_columns.columns import (
    FeatureColumn,
    bucketized,
    crossed,
    embedding,
    hashed,
    identity,
    indicator,
    numeric,
    sequence,
    shared_embeddings,
    vocabulary,
    weighted,
)
from tensorferry.feature_columns.encoding import FittedColumns
from tensorferry.feature_columns.learning import fit_columns, infer

__all__ = [
    "FeatureColumn",
    "FittedColumns",
    "bucketized",
    "crossed",
    "embedding",
    "fit_columns",
    "hashed",
    "identity",
    "indicator",
    "infer",
    "numeric",
    "sequence",
    "shared_embeddings",
    "vocabulary",
    "weighted",
]
