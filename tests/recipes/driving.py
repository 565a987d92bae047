"""A recipe's interface driven by hand, as the smallest loop would: what the tests of torch recipes share."""

import numpy as np
import torch

from tensorferry.recipes.recipe import Arrays, Data, Predict, TorchRecipe


def read_batch(recipe: TorchRecipe, data: Data, seed: int = 0) -> Arrays:
    """A batch of the training samples."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(len(data.train), size=recipe.settings.batch)
    return recipe.collate([data.train.read(int(index), np.random.default_rng(int(index))) for index in indices])


def make_predict(recipe: TorchRecipe, model: torch.nn.Module) -> Predict:
    """The model as `evaluate` is given it."""

    def predict(batch: Arrays) -> np.ndarray:
        assert set(batch) == set(recipe.inputs)
        training = model.training
        model.eval()
        with torch.no_grad():
            outputs = model(*(torch.as_tensor(batch[name]) for name in recipe.inputs)).numpy()
        model.train(training)
        return outputs

    return predict


def train(recipe: TorchRecipe, model: torch.nn.Module, data: Data, num_steps: int) -> list[float]:
    """The losses of a few steps."""
    optimizer = recipe.make_optimizer(model)
    losses = []
    for step in range(num_steps):
        batch = {name: torch.as_tensor(array) for name, array in read_batch(recipe, data, step).items()}
        loss = recipe.compute_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
