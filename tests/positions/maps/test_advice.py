"""A map with which a text would leave the window is refused; the defaults that it names do."""

import itertools
import re

import numpy as np
import pytest

from rope_jax.positions.maps import MAPS, relative_positions

GRIDS = {
    "rerope": {"window": ["auto", 1, 7, 8, 200]},
    "leaky_rerope": {"window": ["auto", 1, 6, 7, 200], "k": ["auto", 1.0, 1.5, 50.0]},
    "self_extend": {"window": ["auto", 4, 8], "group": ["auto", 1, 4]},
    "dual_chunk": {"chunk": ["auto", 6, 7, 8, 200], "local": ["auto", 1, 5]},
    "streaming": {"sinks": [0, 4, 7, 8, 200], "recent": ["auto", 1, 7, 200]},
    "lm_infinite": {"sinks": [0, 4, 200], "recent": ["auto", 1, 8, 200]},
}


def refusal(map_, window, length):
    """Return why a map is refused; "" if it is not."""
    try:
        map_.check_reach(window, length)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("window", [8, 128])
@pytest.mark.parametrize("name", GRIDS)
def test_a_map_is_refused_exactly_if_a_text_leaves_the_window(name, window):
    refused = 0
    lengths = window + 1, 4 * window
    for *values, length in itertools.product(*GRIDS[name].values(), lengths):
        settings = dict(zip(GRIDS[name], values, strict=True))
        try:
            map_ = MAPS[name].model_validate(settings).at(window, length)
        except ValueError:
            continue  # settings that do not go with an automatic one
        place = np.arange(length)
        largest = np.nanmax(relative_positions(map_.bands(window, length), place, place))
        message = refusal(map_, window, length)
        assert bool(message) == (largest > window - 1 + 1e-6), (settings, length)
        if not message:
            continue
        refused += 1
        values = ", ".join(map_.shown_settings.values())
        assert message.startswith(f"{', '.join(GRIDS[name])}: {values} put the first of ")
        default = MAPS[name]().at(window, length)
        advised = re.search("; the defaults, (.*), would do$", message)
        assert bool(advised) == (not refusal(default, window, length))
        if advised:
            shown = default.shown_settings.items()
            assert advised[1] == ", ".join(f"{key} {value}" for key, value in shown)
    assert refused
