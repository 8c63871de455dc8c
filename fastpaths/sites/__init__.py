"""One file per family: where its fast paths go. Only these files know model classes."""
