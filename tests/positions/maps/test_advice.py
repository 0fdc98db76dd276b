"""A refused map: with the value that the message names, the map is accepted."""

import itertools
import re

import pytest

from rope_jax.positions.maps import MAPS

GRIDS = {
    "rerope": {"window": ["auto", 1, 7, 8, 200]},
    "leaky_rerope": {"window": ["auto", 1, 6, 7, 200], "k": ["auto", 1.0, 1.5, 50.0]},
    "dual_chunk": {"chunk": ["auto", 6, 7, 8, 200], "local": ["auto", 1, 5, 8, 150]},
    "streaming": {"sinks": [0, 4, 7, 8, 200], "recent": ["auto", 1, 7, 200]},
    "lm_infinite": {"sinks": [0, 4, 200], "recent": ["auto", 1, 8, 200]},
}
ADVICE = re.compile(r"(\w+): .*; give at (?:most|least) ([\d,.]*\d)(?:, and (\w+)(.*))?")


def refusal(settings, window, length):
    """Return why a map is refused; "" if it is not."""
    try:
        map_ = MAPS[settings["type"]].model_validate(settings).at(window, length)
        map_.check_reach(window, length)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("window", [3, 8, 128])
@pytest.mark.parametrize("name", GRIDS)
def test_the_advice_of_a_refusal_works(name, window):
    followed = 0
    lengths = window + 1, 4 * window, 16 * window
    for *values, length in itertools.product(*GRIDS[name].values(), lengths):
        settings = {"type": name} | dict(zip(GRIDS[name], values, strict=True))
        if name == "dual_chunk" and "auto" not in values and values[1] >= values[0]:
            continue  # refused at any window
        message = refusal(settings, window, length)
        if not message:
            continue
        key, value, also, how = ADVICE.match(message).groups()
        value = float(value.replace(",", ""))
        changed = settings | {key: value if key == "k" else int(value)}
        if also:
            most = re.search(r"at most ([\d,]+)", how)
            changed[also] = int(most[1].replace(",", "")) if most else "auto"
        assert refusal(changed, window, length) == "", (settings, length, message)
        followed += 1
    assert followed


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"type": "rerope"}, 2),
        ({"type": "leaky_rerope"}, 3),
        ({"type": "streaming", "sinks": 0}, 2),
        ({"type": "lm_infinite"}, 2),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_a_window_can_be_too_short_for_any_setting(settings, least):
    assert refusal(settings, least, 64) == ""
    wanted = f"type: needs a window of at least {least} tokens, not {least - 1}"
    assert refusal(settings, least - 1, 64) == wanted
