"""Where a map begins: the smallest distance at which a key is no longer seen as without it."""

import pytest

from rope_jax.positions.maps import MAPS, first_changed_distance

LENGTH = 64


@pytest.mark.parametrize(
    ("name", "settings", "border"),
    [
        ("rerope", {"window": 16}, 16),
        ("leaky_rerope", {"window": 16, "k": 4.0}, 16),
        ("self_extend", {"window": 16, "group": 4}, 16),
        ("streaming", {"sinks": 4, "recent": 20}, 21),
        ("lm_infinite", {"sinks": 4, "recent": 20}, 20),
        ("far_frequencies", {"window": 16, "far": {"type": "pi", "factor": 2.0}}, 16),
    ],
)
def test_a_map_begins_at_its_border(name, settings, border):
    map_ = MAPS[name].model_validate({"type": name} | settings)
    assert first_changed_distance(map_.bands(32, LENGTH), LENGTH) == border


def test_a_map_without_effect_has_no_border():
    map_ = MAPS["rerope"].model_validate({"type": "rerope", "window": 100})
    assert first_changed_distance(map_.bands(32, LENGTH), LENGTH) is None
