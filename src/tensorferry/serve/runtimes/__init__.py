"""Runtimes: what runs a model's file. One file each, imported when a model needs it."""
