"""Which trainer a recipe gets; the one of a framework is imported when it is asked for."""

from tensorferry.errors import BadRecipe
from tensorferry.extras import FRAMEWORK_EXTRAS, missing_extra
from tensorferry.recipes.recipe import Data, KerasRecipe, Recipe, TorchRecipe
from tensorferry.scaling.team import ALONE, Team
from tensorferry.train.trainer import Terms, Trainer


def make_trainer(recipe: Recipe, data: Data, terms: Terms, team: Team = ALONE) -> Trainer:
    """The trainer of the recipe's framework, with the model built and nothing trained yet; a team may build it in `prepare`."""
    try:
        if isinstance(recipe, TorchRecipe):
            from tensorferry.train.torch import TorchTrainer

            return TorchTrainer(recipe, data, terms)
        if isinstance(recipe, KerasRecipe):
            from tensorferry.train.keras import KerasTrainer

            return KerasTrainer(recipe, data, terms, team)
    except ModuleNotFoundError as error:
        if error.name not in FRAMEWORK_EXTRAS:
            raise
        raise missing_extra("this recipe", error.name) from error
    raise BadRecipe(f"{type(recipe).__name__} inherits from Recipe itself; inherit from TorchRecipe or KerasRecipe")
