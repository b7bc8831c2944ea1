"""The folder of a training run: how it is written, read, locked and identified."""
