"""Exponentials and Lambert's function, written so that loops over them vectorise.

A call to the mathematics library inside a loop keeps the compiler from vectorising it. The
functions here are branch-free polynomials that are inlined into their loops instead; each works
in the precision of its argument.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

# An exponent n becomes 2**n by shifting n + bias into the exponent field of the number.
_INV_LOG2 = 1.4426950408889634
_LOG2_HIGH32, _LOG2_LOW32 = 0.693359375, -2.12194440e-4
_LOG2_HIGH64, _LOG2_LOW64 = 0.6931471803691238, 1.9082149292705877e-10
# Adding and subtracting 1.5 * 2**(mantissa bits) rounds to the nearest integer.
_ROUND32, _ROUND64 = 12582912.0, 6755399441055744.0
# Beyond these exp would leave the range of normal numbers.
_LOWEST32, _HIGHEST32 = -87.0, 88.0
_LOWEST64, _HIGHEST64 = -708.0, 709.0
_TAYLOR64 = tuple(1.0 / math.factorial(i) for i in range(14))


@intrinsic
def _power_of_two(typingctx: Any, n: Any) -> Any:
    """Return 2.0**n for an integral float n, by its bits."""
    single = n == types.float32
    width, bias, shift = (32, 127, 23) if single else (64, 1023, 52)
    float_type = ir.FloatType() if single else ir.DoubleType()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        integer = ir.IntType(width)
        exponent = builder.add(builder.fptosi(args[0], integer), integer(bias))
        return builder.bitcast(builder.shl(exponent, integer(shift)), float_type)

    return n(n), codegen


def fast_exp(x: float) -> float:
    """Return e**x to a few units in the last place, without a branch."""
    return math.exp(x)


@overload(fast_exp, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _fast_exp(x: Any) -> Any:
    if x == types.float32:
        f32 = np.float32

        def exp32(x: Any) -> Any:
            x = min(max(x, f32(_LOWEST32)), f32(_HIGHEST32))
            n = (x * f32(_INV_LOG2) + f32(_ROUND32)) - f32(_ROUND32)
            r = (x - n * f32(_LOG2_HIGH32)) - n * f32(_LOG2_LOW32)
            p = f32(1.9875691500e-4)
            p = p * r + f32(1.3981999507e-3)
            p = p * r + f32(8.3334519073e-3)
            p = p * r + f32(4.1665795894e-2)
            p = p * r + f32(1.6666665459e-1)
            p = p * r + f32(5.0000001201e-1)
            return (p * r * r + r + f32(1.0)) * _power_of_two(n)

        return exp32

    def exp64(x: Any) -> Any:
        x = min(max(x, _LOWEST64), _HIGHEST64)
        n = (x * _INV_LOG2 + _ROUND64) - _ROUND64
        r = (x - n * _LOG2_HIGH64) - n * _LOG2_LOW64
        p = _TAYLOR64[13]
        p = p * r + _TAYLOR64[12]
        p = p * r + _TAYLOR64[11]
        p = p * r + _TAYLOR64[10]
        p = p * r + _TAYLOR64[9]
        p = p * r + _TAYLOR64[8]
        p = p * r + _TAYLOR64[7]
        p = p * r + _TAYLOR64[6]
        p = p * r + _TAYLOR64[5]
        p = p * r + _TAYLOR64[4]
        p = p * r + _TAYLOR64[3]
        p = p * r + _TAYLOR64[2]
        p = p * r + 1.0
        return (p * r + 1.0) * _power_of_two(n)

    return exp64


@intrinsic
def _bits_to_single(typingctx: Any, bits: Any) -> Any:
    """Return the float32 that a uint32 holds the bits of."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@njit(cache=True, forceinline=True, nogil=True, error_model="numpy")
def half_to_single(h):
    """Return the float32 of a finite float16, given by its bits as uint16.

    The exponent field is moved to its place and rebiased by a multiplication, which turns
    subnormal numbers into normal ones on the way. Infinity and NaN come out as finite numbers of
    at least 65,536: the data are checked for them before.
    """
    magnitude = _bits_to_single(np.uint32(np.uint32(h & 0x7FFF) << np.uint32(13)))
    value = magnitude * np.float32(2.0**112)
    return -value if h & 0x8000 else value
