"""What the cost model sees of a point: each parameter, and the products and ratios that tiles and caches depend on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from relaxc.service.tuning.space import Key, Space

__all__ = ["features"]


def features(space: Space, keys: Sequence[Key]) -> Any:
    """Return a float32 matrix, a row a key: the values v, log2 v, log2 (v*w) and log2 (v/w) of all that can be chosen.

    A tree splits at a value of one feature, so that what a product decides, such as the registers of a tile, has to be
    one. 0 counts as 1/2: switches have a logarithm too.
    """
    free = [axis for axis, values in enumerate(space.values) if len(values) > 1]
    rows = np.array([[space.values[axis][key[axis]] for axis in free] for key in keys], np.float32)
    rows = rows.reshape(len(keys), len(free))
    logs = np.log2(np.maximum(rows, 0.5))
    pairs = list(combinations(range(len(free)), 2))
    products = [logs[:, a] + logs[:, b] for a, b in pairs]
    ratios = [logs[:, a] - logs[:, b] for a, b in pairs]
    return np.column_stack([rows, logs, *products, *ratios])
