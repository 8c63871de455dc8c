"""Hardware counters of single kernels, as Nsight Compute reads them: its program, its table, and their sums."""
