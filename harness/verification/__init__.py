"""Recompute what a campaign folder says from what it keeps, and name what does not agree."""
