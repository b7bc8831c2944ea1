"""The optimum of the last layer, the distance of a trained one from it, and the gradients of the losses."""

from ncollapse.theory.certificate import Certificate, certify, certify_if_known
from ncollapse.theory.configuration import Configuration
from ncollapse.theory.equal_margins import equalising_weights
from ncollapse.theory.escape import Escape, escape
from ncollapse.theory.feature_norm import fix_feature_energy
from ncollapse.theory.initial_values import decay_alone
from ncollapse.theory.landscape import Landscape, bias_gradient, landscape, score_gradient
from ncollapse.theory.mixing import Mixing, mixing_law
from ncollapse.theory.prediction import Prediction, predict, predict_if_known
from ncollapse.theory.problem import Problem
from ncollapse.theory.solver import Solution, solve

__all__ = [
    "Certificate",
    "Configuration",
    "Escape",
    "Landscape",
    "Mixing",
    "Prediction",
    "Problem",
    "Solution",
    "bias_gradient",
    "certify",
    "certify_if_known",
    "decay_alone",
    "equalising_weights",
    "escape",
    "fix_feature_energy",
    "landscape",
    "mixing_law",
    "predict",
    "predict_if_known",
    "score_gradient",
    "solve",
]
