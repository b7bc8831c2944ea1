"""Many runs: carried out by local processes, threads on one GPU, or a Ray cluster."""
