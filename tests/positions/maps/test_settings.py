"""Settings of maps: what "auto" stands for, how far a map reaches, and where it begins."""

import itertools

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from rope_jax.positions.maps import MAPS, AnyMap, first_changed_distance, relative_positions

parse = TypeAdapter(AnyMap).validate_python
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
    for *values, length in itertools.product(*GRIDS[name].values(), (window + 1, 4 * window)):
        settings = dict(zip(GRIDS[name], values, strict=True))
        try:
            map_ = MAPS[name].model_validate(settings).at(window, length)
        except ValueError:
            continue  # settings that do not go with an automatic one
        place = np.arange(length)
        largest = np.nanmax(relative_positions(map_.bands(window, length), place, place))
        message = refusal(map_, window, length)
        assert bool(message) == (largest > window - 1 + 1e-6), (settings, length)
        if message:
            refused += 1
            values = ", ".join(map_.shown_settings.values())
            assert message.startswith(f"{', '.join(GRIDS[name])}: {values} put the first of ")
    assert refused


@pytest.mark.parametrize(
    ("settings", "resolved"),
    [
        ({"type": "rerope"}, "rerope+window=96"),
        ({"type": "leaky_rerope"}, "leaky_rerope+window=96+k=62.94"),
        ({"type": "leaky_rerope", "window": 64}, "leaky_rerope+window=64+k=31.48"),
        ({"type": "self_extend"}, "self_extend+window=64+group=32"),
        ({"type": "self_extend", "group": 16}, "self_extend+window=64+group=16"),
        ({"type": "dual_chunk"}, "dual_chunk+chunk=96+local=16"),
        ({"type": "streaming"}, "streaming+sinks=4+recent=123"),
        ({"type": "lm_infinite"}, "lm_infinite+sinks=10+recent=127"),
        ({"type": "string"}, "string+shift=42+local=4"),
        ({"type": "far_frequencies", "far": {"type": "ntk", "factor": 16.0}},
         "far_frequencies+window=64+far=ntk-16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_auto_follows_from_window_and_length(settings, resolved):
    """L = 128, n = 2,048."""
    map_ = parse(settings)
    assert map_.is_auto
    assert map_.at(128, 2048).label == resolved
    inside = map_.at(128, 128)
    assert inside is None if settings["type"] != "string" else inside.label == resolved


@pytest.mark.parametrize("name", GRIDS)
def test_auto_stays_inside_the_window(name):
    for window, length in ((8, 9), (16, 32), (128, 129), (128, 2048), (100, 333), (4096, 65536)):
        # the ten sinks of lm_infinite do not fit into a window of 8
        map_ = parse({"type": name} | ({"sinks": 4} if "sinks" in GRIDS[name] else {}))
        made = map_.at(window, length)
        made.check_reach(window, length)
        r = relative_positions(
            made.bands(window, length), np.array([length - 1]), np.arange(length)
        )
        assert np.nanmax(r) <= window - 1


def test_dual_chunk_reaches_as_far_as_its_largest_relative_position():
    # chunks of 30 tokens: no key is seen at more than 2 · 30 − 1, although s is above the window
    parse({"type": "dual_chunk", "chunk": 130, "local": 100}).check_reach(128, 512)
    with pytest.raises(ValueError, match=r"chunk, local: 130, 10 put .* at distance 130, outside"):
        parse({"type": "dual_chunk", "chunk": 130, "local": 10}).check_reach(128, 512)


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
    with pytest.raises(ValidationError, match="group: 6 does not divide window 64; 4 does"):
        parse({"type": "self_extend", "window": 64, "group": 6})


@pytest.mark.parametrize(
    ("settings", "border"),
    [
        ({"type": "rerope", "window": 9}, 9),
        ({"type": "leaky_rerope", "window": 9, "k": 3.0}, 9),
        ({"type": "self_extend", "window": 12, "group": 4}, 12),
        ({"type": "dual_chunk", "chunk": 13, "local": 4}, 0),
        ({"type": "streaming", "sinks": 3, "recent": 8}, 9),
        ({"type": "streaming", "sinks": 0, "recent": 8}, 9),
        ({"type": "lm_infinite", "sinks": 3, "recent": 8}, 8),
        ({"type": "string", "shift": 9, "local": 2}, 9),
        ({"type": "far_frequencies", "window": 9, "far": {"type": "pi", "factor": 2.0}}, 9),
    ],
    ids=str,
)
def test_where_a_map_begins_and_whether_it_has_an_effect(settings, border):
    map_ = parse(settings)
    assert first_changed_distance(map_.bands(32, 64), 64) == border
    says = []
    for length in range(2, 40):
        says.append(map_.has_effect(length, length))
        if settings["type"] != "far_frequencies":
            place = np.arange(length)
            distance = (place[:, None] - place).astype(float)
            # the window is the length itself: m is 1
            r = relative_positions(map_.bands(length, length), place, place)
            differs = (r != distance)[distance >= 0].any()
            # keys at distance w have their own distance at first, but frequencies of a far band
            early = settings["type"] == "leaky_rerope" and length == 10
            assert says[-1] == (differs or early), length
    assert not says[0]
    assert says[-1]
    if border:
        assert first_changed_distance(map_.bands(32, border), border) is None
