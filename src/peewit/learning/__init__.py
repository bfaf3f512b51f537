"""Hyperparameters learnt while a network trains: `pw.learning.train`, or a `pw.learning.Learner` in a loop of yours."""

from .learner import Learner
from .loop import Training, train
from .options import cosine
from .records import History, LearningRecord

__all__ = ["History", "Learner", "LearningRecord", "Training", "cosine", "train"]
