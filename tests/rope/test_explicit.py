"""The strategy made of the user's own numbers, given in settings or in a file."""

import numpy as np
import pytest

from rope_jax.rope import RotaryGeometry, parse_scaling
from tests.rope.test_strategies import assert_golden, in_float64


def test_explicit_frequencies_and_factors_are_themselves():
    geometry = RotaryGeometry(8, 1e4, 128)
    given = [0.5, 0.25, 0.125, 0.0]
    by_frequency = parse_scaling({"type": "explicit", "inv_freq": given, "attention_factor": 1.5})
    assert in_float64(by_frequency.frequencies(geometry)).tolist() == given
    assert by_frequency.frequencies(geometry).attention_factor == 1.5
    by_factor = parse_scaling({"type": "explicit", "factors": [1, 2, 4, 8]})
    assert_golden(by_factor.frequencies(geometry), {0: 1.0, 1: 0.05, 2: 0.0025, 3: 1.25e-4})


def test_explicit_by_layer():
    geometry = RotaryGeometry(4, 1e4, 128)
    rows = [[0.5, 0.25], [0.4, 0.2], [0.3, 0.1]]
    made = parse_scaling({"type": "explicit", "inv_freq": rows, "attention_factor": [1, 2, 3]})
    for layer, row in enumerate(rows):
        own = made.for_layer(layer, 3).frequencies(geometry)
        np.testing.assert_allclose(in_float64(own), row, rtol=1e-14)
        assert own.attention_factor == layer + 1
    with pytest.raises(ValueError, match=r"^inv_freq: 3 entries for 4 layers$"):
        made.for_layer(0, 4)
    with pytest.raises(ValueError, match=r"^inv_freq: has one entry per layer; use for_layer"):
        made.frequencies(geometry)


def test_explicit_numbers_of_a_file(tmp_path):
    path = tmp_path / "fitted.json"
    path.write_text('{"factors": [1.5, 2.25], "attention_factor": 1.0625}')
    made = parse_scaling({"type": "explicit", "path": str(path)})
    path.unlink()
    assert made == parse_scaling(
        {"type": "explicit", "factors": [1.5, 2.25], "attention_factor": 1.0625}
    )
    assert made.path is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "path: .*fitted.json cannot be read"),
        ("{", "path: .*fitted.json is not JSON"),
        ("[1, 2]", "path: .* may hold inv_freq, factors, attention_factor; it has no keys"),
        ('{"freq": [1]}', "path: .* may hold inv_freq, factors, attention_factor; it has freq"),
        ('{"inv_freq": [1, 2], "factors": [1, 2]}', "inv_freq, factors: give one of the two"),
        ('{"inv_freq": [1, NaN]}', "inv_freq"),
        (
            '{"attention_factor": 2.0, "factors": [1, 2]}',
            "attention_factor: is given both",
        ),
    ],
)
def test_explicit_bad_files(tmp_path, content, message):
    path = tmp_path / "fitted.json"
    if content is not None:
        path.write_text(content)
    given = {"type": "explicit", "path": str(path)}
    if "is given both" in message:
        given["attention_factor"] = 1.5
    with pytest.raises(ValueError, match=message):
        parse_scaling(given)
