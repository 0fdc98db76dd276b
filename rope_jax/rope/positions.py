"""Checks of integer positions on the host, which travel to the device as int32."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 2**31


def is_on_host(positions: Any) -> bool:
    """Return whether positions are numpy or Python numbers, so that their values can be checked."""
    return isinstance(positions, np.ndarray | np.generic | list | tuple | int | float)


def host_positions(positions: Any) -> NDArray[np.int64]:
    """Return host positions [..., T] as int64; ValueError unless they are integers of 32 bits."""
    array = np.asarray(positions)
    if array.dtype.kind in "fO" and _all_integers(positions):
        array = np.asarray(positions, object)  # keep integers that numpy would turn into floats
    elif array.size and array.dtype.kind not in "iu":
        raise ValueError(
            f"positions: are {array.dtype}, not integers; to divide positions, divide inv_freq"
        )
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if low < -LIMIT or high >= LIMIT:
        furthest = high if high >= LIMIT else low
        raise ValueError(f"positions: reach {furthest}; the limit is 2^31 − 1")
    return array.astype(np.int64)


def _all_integers(positions: Any) -> bool:
    """Whether Python numbers are integers, including those of more than 64 bits."""
    if isinstance(positions, np.ndarray):
        return positions.dtype == object and all(map(_all_integers, positions.flat))
    if isinstance(positions, list | tuple):
        return all(map(_all_integers, positions))
    return isinstance(positions, int | np.integer)
