"""Makes the weights of the embedded LongCat-Image: renderer, captions, checker, training stages, evaluation.

Not part of the package: fuseproof never imports it. README.md beside this file says how to run it.
"""
