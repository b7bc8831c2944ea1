"""What the last layer converges to, how far a trained one is from it, and how the losses pull."""

from ncollapse.theory.certificate import Certificate, certify
from ncollapse.theory.curvature import Escape, escape
from ncollapse.theory.landscape import Landscape, bias_gradient, landscape, score_gradient
from ncollapse.theory.prediction import Configuration, Prediction, predict
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import Solution, solve

__all__ = [
    "Certificate",
    "Configuration",
    "Escape",
    "Landscape",
    "Prediction",
    "Problem",
    "Solution",
    "bias_gradient",
    "certify",
    "escape",
    "landscape",
    "predict",
    "score_gradient",
    "solve",
]
