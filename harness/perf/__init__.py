"""Perf dumps, ours and sglang's: reading, writing, comparing two of them, judging blocks of them."""
