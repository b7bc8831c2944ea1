"""The papers' networks, each with its last layer in plain view."""

from ncollapse.models.create import NAMES, create
from ncollapse.models.network import Network, count_parameters

__all__ = ["NAMES", "Network", "count_parameters", "create"]
