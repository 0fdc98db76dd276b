"""Kernels for CPUs, in C++, and what calls them. Compiled while the package is installed."""
