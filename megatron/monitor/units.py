"""Numbers for people: short, with their unit, three digits where three say enough."""

from __future__ import annotations

import math


def count_text(number: float) -> str:
    """``950``, ``12.3k``, ``1.47M``, ``20.6B``: three digits and a letter from a thousand on."""
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        # Compare with what rounding makes of it: 999.6 is "1.00k", not "1000".
        if abs(number) >= unit * 0.9995:
            return _three_digits(number / unit) + letter
    return f"{number:.0f}"


def flops_text(number: float) -> str:
    """``950 FLOP``, ``1.24 MFLOP``, ``5.20 TFLOP`` …, floating-point operations in powers of 1000."""
    for unit, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= unit * 0.9995:
            return f"{_three_digits(number / unit)} {letter}FLOP"
    return f"{number:.0f} FLOP"


def bytes_text(number: float) -> str:
    """``512 B``, ``4.20 MiB``, ``0.61 GiB`` … in powers of 1024."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(number) >= unit * 0.9995:
            return f"{_three_digits(number / unit)} {name}"
    return f"{number:.0f} B"


def float_text(number: float) -> str:
    """``0.92``, ``12.3``, ``456``, ``3.1e-05``, ``1.2e+07``, ``inf``."""
    if not math.isfinite(number):
        return str(number)
    if number and not 0.01 <= abs(number) < 1e5:
        return f"{number:.1e}"
    return _three_digits(number)


def duration_text(seconds: float) -> str:
    """``84 ms``, ``1.24 s``, ``45 s``, ``1m50s``, ``2h05m``, ``3d04h``."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02d}h"


def _three_digits(number: float) -> str:
    size = abs(number)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{number:.{decimals}f}"
