"""The callback on the TensorFlow back end: everything `fit` can do, with the same bits and no trace left behind."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "tensorflow"))

import keras
import numpy as np
import pytest
import tensorflow as tf
from networks import NETWORKS, bits, compiled

import tensorferry as ferry
from tensorferry.plan.floor import Floor
from tensorferry.trace import Kind

BUDGET = "8GiB"  # roomy: the first step swaps everything all the same
NETWORK = NETWORKS[0]


def _data(num: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return rng.random((num, 16, 16, 3), "float32"), rng.integers(5, size=num)


def _callback(**settings: Any) -> ferry.LargeModel:
    return ferry.LargeModel(**{"budget": BUDGET, "min_nbytes": 4096} | settings)


def _fit(callback: ferry.LargeModel | None, model: keras.Model | None = None, **settings: Any) -> tuple[keras.Model, dict]:
    model = model or compiled(NETWORK)
    x, y = _data()
    arguments = {"x": x, "y": y, "batch_size": 4, "epochs": 2, "verbose": 0, "shuffle": False} | settings
    callbacks = [callback] if callback else []
    with ferry.tensorflow.same_rewrites():
        history = model.fit(**arguments, callbacks=callbacks)
    return model, history.history


def _dataset(batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_data()).batch(batch_size, drop_remainder=batch_size == 4)


CALLS: dict[str, dict[str, Any]] = {
    "arrays": {},
    "validation data": {"validation_data": _data(4)},
    "class weights": {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0, 4: 3.0}},
    "tf.data": {"x": _dataset(4), "y": None, "batch_size": None, "shuffle": True},
}
RAGGED: dict[str, dict[str, Any]] = {
    "arrays": {"batch_size": 5},
    "tf.data": {"x": _dataset(5), "y": None, "batch_size": None, "shuffle": True},
}


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("name", RAGGED)
def test_a_partial_last_batch_gives_the_same_bits(name: str) -> None:
    """Keras traces one graph for all sizes, a plan has one for each."""
    model, _ = _fit(_callback(), **RAGGED[name])
    plain, _ = _fit(None, **RAGGED[name])
    assert bits(model) == bits(plain)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.parametrize("name", CALLS)
def test_fit_gives_the_same_bits_and_the_same_history(name: str) -> None:
    callback = _callback()
    model, history = _fit(callback, **CALLS[name])
    plain, plain_history = _fit(None, **CALLS[name])
    assert bits(model) == bits(plain)
    assert history == plain_history
    report = callback.report()
    assert report.num_steps >= 6
    assert report.plan is not None
    assert "Fits" in str(report)


def test_several_steps_in_one_execution_give_the_same_bits() -> None:
    models = []
    for callback in (_callback(), None):
        model = compiled(NETWORK)
        model.steps_per_execution = 2
        models.append(_fit(callback, model)[0])
    assert bits(models[0]) == bits(models[1])


def test_a_second_fit_with_evaluate_and_predict_between_gives_the_same_bits() -> None:
    models = []
    for callback in (_callback(), None):
        model, _ = _fit(callback)
        model.evaluate(*_data(4), verbose=0)
        model.predict(_data(4)[0], verbose=0)
        models.append(_fit(callback, model)[0])
    assert bits(models[0]) == bits(models[1])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras saves variables so
def test_training_leaves_no_trace_on_the_model(tmp_path: Path) -> None:
    model = compiled(NETWORK)
    before = set(vars(model))
    _fit(_callback(), model)
    plain, _ = _fit(None)
    assert set(vars(model)) <= before | set(vars(plain))
    assert type(model.train_function) is type(plain.train_function)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, _ = _data(4)
    assert (loaded(x).numpy() == model(x).numpy()).all()
    model.export(tmp_path / "exported", verbose=False)
    assert (tmp_path / "exported" / "saved_model.pb").exists()


def test_a_failing_step_gives_the_model_its_own_function_back() -> None:
    model = compiled(NETWORK)
    model.make_train_function()
    own = model.train_function
    with pytest.raises(tf.errors.InvalidArgumentError, match="label value"):
        _fit(_callback(), model, y=np.full(12, 99))
    assert model.train_function is own


def test_xla_is_turned_off_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    model = compiled(NETWORK)
    model.compile("adam", NETWORK.loss, jit_compile=True)
    callback = _callback()
    _fit(callback, model, epochs=1)
    assert "XLA" in caplog.text
    assert any("XLA" in note for note in callback.report().notes)


def test_another_back_end_is_refused_with_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ferry.NotSupported, match="KERAS_BACKEND=tensorflow or KERAS_BACKEND=torch"):
        _callback().on_train_begin()


def test_running_eagerly_is_refused() -> None:
    model = compiled(NETWORK)
    model.compile("adam", NETWORK.loss, run_eagerly=True)
    with pytest.raises(ferry.NotSupported, match="run_eagerly"):
        _fit(_callback(), model)


def test_a_budget_below_the_floor_names_the_op_and_the_smallest_budget() -> None:
    # what is held there beside activations and weights is measured, and may be nothing
    with pytest.raises(ferry.BudgetTooSmall, match=r"at its widest, in '.*', it holds .* will do") as caught:
        _fit(_callback(budget="1MiB"))
    assert caught.value.smallest_nbytes > 2**20


def test_a_tier_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ferry.BadTier, match="does not exist"):
        _fit(_callback(tier=f"disk:{tmp_path / 'nowhere'}"))


def test_a_tier_that_fails_under_way_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorferry.tiers.files import FileTier

    def lose(self: FileTier, slot: object, block: object) -> None:
        raise ferry.TierLost("the disk is gone")

    monkeypatch.setattr(FileTier, "read_into", lose)
    with pytest.raises(ferry.TierLost, match="the disk is gone"):
        _fit(_callback())


@pytest.fixture
def state_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a budget that is too small for anything else."""
    module = sys.modules["tensorferry.engines.tensorflow.large_function"]
    monkeypatch.setattr(module.LargeFunction._record, "__kwdefaults__", {"with_state": True})


@pytest.mark.usefixtures("state_moves")
def test_fit_gives_the_same_bits_with_the_optimizers_state_on_the_tier() -> None:
    callback = _callback()
    model, history = _fit(callback)
    plain, plain_history = _fit(None)
    assert (bits(model), history) == (bits(plain), plain_history)


@pytest.mark.usefixtures("state_moves")
def test_state_that_is_lost_with_its_tier_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorferry.tiers.files import FileTier

    def lose(self: FileTier, slot: object, block: object) -> None:
        raise ferry.TierLost("the disk is gone.")

    monkeypatch.setattr(FileTier, "read_into", lose)
    with pytest.raises(ferry.TierLost, match=r"the disk is gone\. The optimizer's .* is lost: load it from a checkpoint"):
        _fit(_callback())


def test_the_optimizers_state_moves_where_a_step_would_not_fit_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["tensorferry.engines.tensorflow.large_function"]
    monkeypatch.setattr(module.LargeFunction, "_warm_floor", lambda *_: Floor(2**50, 0))
    callback = _callback()
    model, history = _fit(callback)
    plain, plain_history = _fit(None)
    trace = callback.report().trace
    assert trace is not None
    assert any(trace.storages[s].kind is Kind.OPTIMIZER for s in trace.movable)
    assert (bits(model), history) == (bits(plain), plain_history)


@pytest.mark.usefixtures("state_moves")
@pytest.mark.parametrize("method", ["write", "read_into"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_no_state_is_lost_when_a_copy_fails(method: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorferry.tiers.files import FileTier

    real, calls = getattr(FileTier, method), iter(range(1000))
    failing = None

    def fail_once(self: FileTier, *args: Any) -> Any:
        if next(calls) == failing:
            raise ferry.TierLost("the disk was away for a moment")
        return real(self, *args)

    monkeypatch.setattr(FileTier, method, fail_once)
    model, other = compiled(NETWORK), compiled(NETWORK)
    x, y = map(tf.constant, _data(4))
    before = bits(model)
    with ferry.tensorflow.same_rewrites():
        ferry.tensorflow.large_function(_own_step(other), budget=BUDGET, min_nbytes=4096)(x, y)
        num_copies = next(calls)
        failing = num_copies + int(share * num_copies)
        with pytest.raises(ferry.TierLost, match="for a moment"):
            ferry.tensorflow.large_function(_own_step(model), budget=BUDGET, min_nbytes=4096)(x, y)
    for now, old, new in zip(bits(model), before, bits(other), strict=True):
        assert now in (old, new)


def test_recompute_can_be_turned_off_and_copies_started_earlier() -> None:
    callback = _callback(recompute=False, fetch_ahead=4, leave=("dense*",))
    model, _ = _fit(callback)
    assert bits(model) == bits(_fit(None)[0])
    assert callback.report().moved.recomputed_nbytes == 0


def test_nothing_to_report_before_fit() -> None:
    with pytest.raises(ferry.FerryError, match="pass this callback to fit first"):
        _callback().report()


def _own_step(model: keras.Model) -> Any:
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


def test_a_function_of_an_own_loop_gives_the_same_bits() -> None:
    x, y = map(tf.constant, _data(4))
    outcomes = []
    for wrap in (lambda f: ferry.tensorflow.large_function(f, budget=BUDGET, min_nbytes=4096), tf.function):
        model = compiled(NETWORK)
        step = wrap(_own_step(model))
        with ferry.tensorflow.same_rewrites():
            losses = [float(step(x, y)) for _ in range(4)]
        outcomes.append((losses, bits(model)))
    assert outcomes[0] == outcomes[1]


class _Layered(tf.Module):
    """A training step as a method, with arguments that are no tensors."""

    def __init__(self) -> None:
        self.weights = tf.Variable(tf.random.stateless_normal((64, 64), seed=(1, 2)) / 8)

    @tf.function
    def step(self, x: tf.Tensor, scale: float = 2.0, *, average: bool = True) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for _ in range(4):
                x = tf.nn.relu(x @ self.weights) * scale
            loss = tf.reduce_mean(x) if average else tf.reduce_sum(x)
        self.weights.assign_sub(1e-3 * tape.gradient(loss, self.weights))
        return loss


def test_a_function_may_have_defaults_and_arguments_that_are_no_tensors() -> None:
    x = np.random.default_rng(3).random((32, 64), "float32")
    calls: list[tuple[tuple, dict]] = [((x,), {}), ((tf.constant(x),), {}), ((x, 1.5), {}), ((x,), {"average": False})]
    outcomes = []
    for wrap in (lambda f: ferry.tensorflow.large_function(f, budget=BUDGET, min_nbytes=4096), lambda f: f):
        model = _Layered()
        step = wrap(model.step)
        with ferry.tensorflow.same_rewrites():
            losses = [float(step(*args, **kwargs)) for args, kwargs in calls for _ in range(3)]
        outcomes.append((losses, model.weights.numpy().tobytes()))
    assert outcomes[0] == outcomes[1]


def test_a_function_given_a_budget_still_runs_without_one() -> None:
    x = tf.ones((32, 64))
    model, other = _Layered(), _Layered()
    large = ferry.tensorflow.large_function(model.step, budget=BUDGET, min_nbytes=4096)
    with ferry.tensorflow.same_rewrites():
        losses = [float(step(x)) for step in (large, model.step, large, large, model.step)]
        assert losses == [float(other.step(x)) for _ in range(5)]


def test_a_kind_of_step_that_was_forgotten_is_traced_anew() -> None:
    model, other = _Layered(), _Layered()
    large = ferry.tensorflow.large_function(model.step, budget=BUDGET, min_nbytes=4096)
    sizes = [*range(20, 30), 20, 21]  # more kinds than are remembered
    with ferry.tensorflow.same_rewrites():
        losses = [float(large(tf.ones((n, 64)))) for n in sizes]
        assert losses == [float(other.step(tf.ones((n, 64)))) for n in sizes]


def test_a_training_that_runs_is_not_refused_for_what_is_learnt_later(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = _Layered(), _Layered()
    x = tf.ones((32, 64))
    large = ferry.tensorflow.large_function(model.step, budget=BUDGET, min_nbytes=4096)
    with ferry.tensorflow.same_rewrites():
        losses = [float(large(x)) for _ in range(2)]
        monkeypatch.setattr(large._device, "outside_nbytes", lambda: 2**40)
        losses += [float(large(x)) for _ in range(4)]
        assert losses == [float(other.step(x)) for _ in range(6)]


def test_a_training_whose_first_step_fitted_goes_on_whatever_that_step_taught() -> None:
    model, other = _Layered(), _Layered()
    x = tf.ones((32, 64))
    large = ferry.tensorflow.large_function(model.step, budget=BUDGET, min_nbytes=4096)
    with ferry.tensorflow.same_rewrites():
        losses = [float(large(x))]
        large._outside_nbytes = 2**40  # as if so much more than the graph alone tells were needed
        losses += [float(large(x)) for _ in range(3)]
        assert losses == [float(other.step(x)) for _ in range(4)]
    assert large.report().plan is not None


def test_a_training_whose_first_step_did_not_fit_is_refused_with_a_budget_in_which_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _Layered()
    large = ferry.tensorflow.large_function(model.step, budget=BUDGET, min_nbytes=4096)
    large(tf.ones((32, 64)))
    large._outside_nbytes = 9 * 2**30
    monkeypatch.setattr(large._device, "highest_resident_nbytes", lambda: 12 * 2**30)
    with pytest.raises(ferry.BudgetTooSmall) as caught:
        large(tf.ones((32, 64)))
    assert caught.value.smallest_nbytes >= 12 * 2**30
