"""How right builds scatter: each of them passes as a build, and the reference's own luck refuses none."""

from __future__ import annotations

import numpy as np
import pytest

from relaxc.service.runtime.scatter import from_the_others, scatter_of


def builds(sizes, seed=0):
    draw = np.random.default_rng(seed)
    real = draw.standard_normal((64, 64))
    return real, [real + size * draw.standard_normal(real.shape) for size in sizes]


@pytest.mark.parametrize("first", [0.004, 0.0177, 0.0365])
def test_a_reference_that_is_near_what_is_not_rounded_by_luck_bounds_nobody(first):
    """Sizes of a network of 24 layers, whose draws have outputs that are off by 1 to 4 %."""
    real, (want, *runs) = builds([first, *np.linspace(0.0103, 0.0365, 16)])
    found = scatter_of(want, runs, real, alike=True)
    assert max(np.sqrt(np.mean(each**2)) for each in from_the_others([want, *runs])) <= found.bound
    for run in runs:
        near, far = found.distances(run)
        assert near <= found.bound and far <= found.far


def test_where_rounding_scatters_less_the_reference_s_distance_is_the_bound():
    real, (want, *runs) = builds([0.01] * 9)
    shifted = real + 0.02 * np.random.default_rng(1).standard_normal(real.shape)  # what all of them are off by
    found = scatter_of(want, runs, shifted, alike=False)
    own = np.sqrt(np.mean((want - shifted) ** 2)) / np.sqrt(np.mean(shifted**2))
    assert found.bound == pytest.approx(min(own, 2 * 0.0105), rel=0.1)
    assert found.bound <= own
