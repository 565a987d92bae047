"""The contract with a Keras model on the torch back end; a back end is chosen once a process, so it is kept in one of its own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

CONTRACT = """
    import importlib.util, sys
    import keras, numpy as np, torch
    from cases import Case, images
    from contract import Contract, Way
    spec = importlib.util.spec_from_file_location("contract_on_an_adversary", sys.argv[1])
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)

    def build():
        keras.backend.clear_session()  # names of layers begin anew
        keras.utils.set_random_seed(0)
        given = keras.Input((3, 16, 16))
        there = keras.layers.Conv2D(16, 3, padding="same", data_format="channels_first")(given)
        back = there
        for _ in range(2):
            back = keras.layers.Conv2D(16, 3, padding="same", data_format="channels_first")(back)
            back = keras.layers.BatchNormalization(axis=1)(back)
            back = keras.layers.Activation("gelu")(back)
        joined = keras.layers.Concatenate(axis=1)([there, back])
        pooled = keras.layers.GlobalAveragePooling2D(data_format="channels_first")(keras.layers.Dropout(0.25)(joined))
        model = keras.Model(given, keras.layers.Dense(5)(pooled))
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    def step(model, batch, _):
        return [torch.as_tensor(np.asarray(model.train_on_batch(*batch)))]

    case = Case("Keras", build, images, step, lambda parameters: None)
    # what is recomputed is chosen beside a slow link, and its updates are Keras' own, which move no state
    ways = {Way.EVERYTHING_LEAVES: 0, Way.TIGHT: 1, Way.SLOW_LINK: 0, Way.WITHOUT_RECOMPUTE: 0}
    for name in sorted(name for name in dir(Contract) if name.startswith("test_")):
        promise = getattr(Contract, name)
        promise(Contract(), suite.OnAdversary(case, ways[promise.way]))
        print("kept", name, flush=True)
"""


def test_the_contract_is_kept_on_keras_torch_back_end() -> None:
    suite = Path(__file__).parent / "torch" / "test_contract.py"
    folders = [*sys.path, str(suite.parent)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {folders!r}\n{textwrap.dedent(CONTRACT)}", str(suite)],
        env=os.environ | {"KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("kept") == 4
