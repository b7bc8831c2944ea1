"""Watch the collapse of any model while it trains, and measure every layer of a trained one."""

from ncollapse.monitoring.layers import LayerProfile, LayerValues, measure_layers
from ncollapse.monitoring.monitor import Monitor, monitor
from ncollapse.monitoring.observation import Observation

__all__ = ["LayerProfile", "LayerValues", "Monitor", "Observation", "measure_layers", "monitor"]
