"""Campaign folders from files that other programs wrote: perf dumps, logs and outputs, labelled by name or manifest."""
