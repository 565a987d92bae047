"""Pipelines: models in several services that call each other, each a server of its own."""
