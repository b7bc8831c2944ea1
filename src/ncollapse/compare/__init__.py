"""Which loss to train with: the runs of a comparison, their statistics over seeds, and the findings in words."""
