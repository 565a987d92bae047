"""Trains the brain recipe a little on the back end that KERAS_BACKEND names, and prints losses and Dice before and after."""

import json

import keras
import numpy as np

from tensorferry.recipes.unet3d_brain import BrainSettings, UNet3dBrain

NUM_STEPS = 24


def main() -> None:
    """Drive the recipe as a training loop does."""
    recipe = UNet3dBrain(BrainSettings(resolution=24, base=4, learning_rate=1e-2))
    data = recipe.load_data(None)
    keras.utils.set_random_seed(0)
    model = recipe.build_model(data)

    def predict(inputs):
        return keras.ops.convert_to_numpy(model(inputs["volumes"], training=False))

    rng = np.random.default_rng(0)
    before = recipe.evaluate(predict, data.held_out)["dice"]
    losses = []
    for index in range(NUM_STEPS):
        batch = recipe.collate([data.train.read(index % len(data.train), rng)])
        losses.append(float(model.train_on_batch(batch["volumes"], batch["classes"])))
    print(json.dumps([losses, before, recipe.evaluate(predict, data.held_out)["dice"]]))


if __name__ == "__main__":
    main()
