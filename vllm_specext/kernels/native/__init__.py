"""The kernels' bodies in C++ for a CPU, compiled once where there is a compiler; elsewhere the bodies in torch run.

No headers of torch are needed, so that it takes seconds and one library serves every version of torch: a body gets
addresses, sizes and strides as one array of words. ``compiler.py`` compiles and keeps the library, ``library.py`` loads
it, and ``operators.py`` calls its bodies through operators of torch.
"""
