"""The papers' tables and figures as experiments: grids, published numbers, sweeps, records and verdicts."""
