"""Stored times of single kernels: read, and held against those of a later run on the same card."""
