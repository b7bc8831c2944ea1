"""What the last layer converges to, how far a trained one is from it, and how the losses pull."""

from ncollapse.theory.prediction import Configuration, Prediction, predict
from ncollapse.theory.problem import Problem

__all__ = ["Configuration", "Prediction", "Problem", "predict"]
