"""Triton kernels, one file an operation: contract, plain-torch reference, kernel, why not, launch."""
