"""Kernels in C++ for the CPU, compiled on the machine they run on."""
