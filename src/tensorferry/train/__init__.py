"""The loop around a recipe: steps, checkpoints, precision, budget, progress, and the run's folder."""
