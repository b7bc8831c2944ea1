"""What the last layer converges to, how far a trained one is from it, and how the losses pull."""

from ncollapse.theory.certificate import Certificate, certify
from ncollapse.theory.prediction import Configuration, Prediction, predict
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import Solution, solve

__all__ = [
    "Certificate",
    "Configuration",
    "Prediction",
    "Problem",
    "Solution",
    "certify",
    "predict",
    "solve",
]
