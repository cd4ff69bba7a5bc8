"""Numba kernels and matrix products: functions of plain arrays, which know no loss object.

Kernels are left without annotations, as Numba infers them from what it is called with; shapes and
dtypes are in the docstrings. Projections, row updates and values have slow, obvious twins in
:mod:`dtopk.testing`.
"""
