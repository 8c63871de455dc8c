"""Kernel profiles: ``profile.json`` read strictly, as tables, as a flame view, and before against after.

A profile says where a request's device time went. Its times were taken under a profiler and are never compared with
timed runs. Nothing here needs torch.
"""
