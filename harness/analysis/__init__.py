"""From a campaign folder to its numbers: which runs count, equal work, outputs, memory, verdicts."""
