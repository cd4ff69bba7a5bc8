"""Numba kernels and matrix products: functions of plain arrays, which know no loss object.

Kernels are left without annotations, as Numba infers them from what it is called with; shapes and
dtypes are in the docstrings. Projections, row updates and values have slow, obvious twins in
:mod:`dtopk.testing`.

A kernel that others call is inlined into them (``forceinline``). Left to itself, a process that
compiles a caller calls the one copy of the callee that it has compiled before, and a process that
loads the caller from numba's cache calls the copy that was optimised with it: their sums differ in
the last bit.
"""

from dtopk.kernels.stale import remove_stale_kernels

remove_stale_kernels()
