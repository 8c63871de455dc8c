"""A kernel's work to hand over: a folder with the reference, true layouts, values, a test and a bench that needs torch.

``inputs``, ``comparing``, ``checking`` and ``timing`` are copied into such a folder as they are, so they use nothing
but torch and each other.
"""
