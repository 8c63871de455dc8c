"""Pictures and videos: hashes at three levels, equality, metrics, difference images."""
