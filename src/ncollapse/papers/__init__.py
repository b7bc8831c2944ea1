"""The papers' tables and figures as experiments: grids, published numbers, claims and verdicts."""
