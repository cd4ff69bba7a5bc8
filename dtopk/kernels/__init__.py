"""Numba kernels and matrix products: functions of plain arrays, which know no loss object.

Kernels are left without annotations, as Numba infers them from what it is called with; shapes and
dtypes are in the docstrings. Each has a slow, obvious twin in :mod:`dtopk.testing`.
"""
