"""scikit-learn's own checks of what an estimator must do, on small ones."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from tensorferry import estimators

# by what an estimator's name begins with
EXPECTED_FAILURES = {
    "Linear": {
        "check_sample_weight_equivalence_on_dense_data": "columns are scaled by how all rows are spread, whatever these weigh",
    },
    "BoostedTrees": {
        "check_sample_weight_equivalence_on_dense_data": "rows are drawn for every tree: a row twice is not one of weight two",
    },
    "DNN": {
        "check_sample_weight_equivalence_on_dense_data": "a row twice is in two batches, one of weight two in one",
    },
    "Baseline": {},
}
SMALL = {"hidden_units": (8,), "epochs": 20, "batch_size": 64, "learning_rate": 0.05, "validation_fraction": 0, "random_state": 0}


def list_expected_failures(estimator) -> dict[str, str]:
    return next(failures for name, failures in EXPECTED_FAILURES.items() if type(estimator).__name__.startswith(name))


@parametrize_with_checks(
    [
        estimators.BaselineClassifier(),
        estimators.BaselineRegressor(),
        estimators.LinearClassifier(),
        estimators.LinearRegressor(),
        estimators.BoostedTreesClassifier(num_trees=10),
        estimators.BoostedTreesRegressor(num_trees=10),
        estimators.DNNClassifier(**SMALL),
        estimators.DNNRegressor(**SMALL),
    ],
    expected_failed_checks=list_expected_failures,
)
def test_scikit_learns_own_checks_pass(estimator, check) -> None:
    check(estimator)
