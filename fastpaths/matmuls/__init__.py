"""Matrix products in another form than eager's, by the library's own kernels; one file each, as with ``kernels``."""
