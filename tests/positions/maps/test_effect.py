"""Whether a map does anything in a text of n tokens, and how far a map reaches."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from rope_jax.positions.maps import AnyMap, relative_positions

parse = TypeAdapter(AnyMap).validate_python

FIXED = [
    {"type": "rerope", "window": 9},
    {"type": "leaky_rerope", "window": 9, "k": 3.0},
    {"type": "self_extend", "window": 12, "group": 4},
    {"type": "dual_chunk", "chunk": 13, "local": 4},
    {"type": "streaming", "sinks": 3, "recent": 8},
    {"type": "streaming", "sinks": 0, "recent": 8},
    {"type": "lm_infinite", "sinks": 3, "recent": 8},
    {"type": "string", "shift": 9, "local": 2},
]


@pytest.mark.parametrize("settings", FIXED, ids=lambda value: value["type"])
def test_a_map_has_an_effect_from_the_first_length_at_which_a_distance_differs(settings):
    """Or a few tokens earlier, while keys beyond the border still have their own distances."""
    map_ = parse(settings)
    differs, says = [], []
    for length in range(2, 40):
        place = np.arange(length)
        distance = (place[:, None] - place[None]).astype(float)
        # the window is the length itself: m is 1
        r = relative_positions(map_.bands(length, length), place, place)
        differs.append(bool((r != distance)[distance >= 0].any()))
        says.append(map_.has_effect(length, length))
    assert not any(different and not said for different, said in zip(differs, says, strict=True))
    # by fewer lengths than a group, the local tokens or the sinks have, and the key at the border
    early = {"self_extend": 3, "dual_chunk": 5, "streaming": 3}.get(settings["type"], 1)
    assert 0 <= sum(says) - sum(differs) <= early
    assert not says[0]
    assert says[-1]


@pytest.mark.parametrize("settings", [s for s in FIXED if s["type"] != "string"], ids=str)
def test_automatic_settings_stay_inside_the_window(settings):
    map_ = parse({"type": settings["type"]})
    for window in (8, 16, 100, 128):
        for length in (window + 1, 2 * window, window**2 // 8):
            made = map_.at(window, length)
            if made is None:
                assert length <= window
                continue
            made.check_reach(window, length)
            place = np.arange(length)
            r = relative_positions(made.bands(window, length), place[-1:], place)
            assert np.nanmax(r) < window
    assert map_.at(16, 16) is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"type": "dual_chunk", "local": 100}, "local: 100 leaves no chunk of 12; give at most 11"),
        ({"type": "string", "local": 6}, "local: 6 is more than shift 5; give at most 5"),
    ],
)
def test_numbers_that_do_not_go_with_the_automatic_ones_are_refused(settings, says):
    with pytest.raises(ValueError, match="give at most") as caught:
        parse(settings).at(16, 64)
    assert str(caught.value) == f"{says} (at a trained window of 16)"
