"""Datasets by name: real ones that packages carry, well-known ones from their makers' files, and files of one's own."""

from tensorferry.datasets.catalog import DatasetCard, find_card, list_cards
from tensorferry.datasets.column import Column
from tensorferry.datasets.dataset import Dataset
from tensorferry.datasets.loading import load

__all__ = ["Column", "Dataset", "DatasetCard", "find_card", "list_cards", "load"]
