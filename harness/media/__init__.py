"""Pictures: hashes at three levels, equality, metrics, difference images."""
