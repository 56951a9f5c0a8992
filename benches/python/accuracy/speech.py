"""Speech-like sound: voiced syllables with three resonances, pauses between them, and low noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

RATE = 16_000
#: Resonances of five vowels in Hz.
_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))


def recording(seconds: float, seed: int) -> NDArray[np.float32]:
    """Create a recording at 16 kHz, from -1 to 1."""
    rng = np.random.default_rng(seed)
    count = int(seconds * RATE)
    sound = np.zeros(count)
    at = int(RATE * rng.uniform(0.1, 0.5))
    while at < count:
        pitch = rng.uniform(95, 220)
        for _ in range(int(rng.integers(2, 7))):
            length = int(RATE * rng.uniform(0.12, 0.3))
            syllable = _syllable(rng, length, pitch * rng.uniform(0.9, 1.1))
            end = min(count, at + length)
            sound[at:end] += syllable[: max(0, end - at)]
            at += length + int(RATE * rng.uniform(0.01, 0.06))
        at += int(RATE * rng.uniform(0.2, 0.9))
    sound += rng.standard_normal(count) * 10 ** rng.uniform(-3.5, -2.2)
    return (sound / max(1.0, np.abs(sound).max())).astype(np.float32)


def _syllable(rng: np.random.Generator, length: int, pitch: float) -> NDArray[np.float64]:
    time = np.arange(length) / RATE
    phase = np.cumsum(pitch * (1 + 0.04 * np.sin(2 * np.pi * 5 * time)) / RATE)
    vowel = _VOWELS[int(rng.integers(len(_VOWELS)))]
    sound = np.zeros(length)
    for number in range(1, int(3800 / pitch)):
        frequency = number * pitch
        size = sum(1 / (1 + ((frequency - center) / 90) ** 2) for center in vowel)
        sound += size / number**0.5 * np.sin(2 * np.pi * number * phase)
    envelope = np.minimum(1, np.minimum(time / 0.03, (time[-1] - time) / 0.06))
    sound *= envelope * rng.uniform(0.1, 0.3) / np.abs(sound).max()
    onset = min(length, int(RATE * 0.03))
    sound[:onset] += rng.standard_normal(onset) * rng.uniform(0.0, 0.06)
    return sound
