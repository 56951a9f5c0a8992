"""Ratios of powers."""

from __future__ import annotations

import math


def decibels(signal: float, noise: float) -> float:
    """Turn two powers into a ratio in dB: infinite without noise, minus infinity without signal."""
    if noise == 0:
        return math.inf
    if not math.isfinite(noise) or signal <= 0:
        return -math.inf
    if not math.isfinite(signal):
        return math.nan
    return 10 * (math.log10(signal) - math.log10(noise))


def decibel_text(value: float) -> str:
    """Return a ratio as people read it."""
    if math.isnan(value):
        return "no number"
    if math.isinf(value):
        return "equal" if value > 0 else "not finite"
    return f"{value:.1f} dB"
