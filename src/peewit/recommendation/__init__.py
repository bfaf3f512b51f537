"""Which recipe to use: `peewit.recommend` tries a few, and returns the best posterior with the reasons."""

from .call import recommend
from .recipes import Recipe
from .result import Recommendation, TriedRecipe

__all__ = ["Recipe", "Recommendation", "TriedRecipe", "recommend"]
