"""A scaling in a line, as the terminal shows it before work starts."""

import pytest

from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.layers import LayerOverride, describe_scaling

GEOMETRY = RotaryGeometry(rotary_dim=8, base=10000.0, train_length=64)


def test_layers_of_one_kind_share_a_line():
    none, yarn = parse_scaling({"type": "none"}), parse_scaling({"type": "yarn", "factor": 4.0})
    pattern = LayerOverride(), LayerOverride(scaling=none)
    (line,) = describe_scaling(RotaryLayers(GEOMETRY, 4), none, 64)
    assert line == "none: slowest wavelength 6,283 tokens"
    lines = describe_scaling(RotaryLayers(GEOMETRY, 4, pattern, 8), yarn, 256, "yarn-4")
    assert lines == [
        "yarn-4, layers 0, 2: yarn, base 10,000; slowest wavelength 25,130 tokens; "
        "frequencies × 1…0.25; m 1.14",
        "yarn-4, layers 1, 3: none, base 10,000; slowest wavelength 6,283 tokens",
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"type": "pi", "factor": 16.0}, "slowest wavelength 100,500 tokens; frequencies × 0.0625"),
        ({"type": "none", "query_scale": {"type": "logn"}},
         "slowest wavelength 6,283 tokens; queries × 1…1.67 (logn)"),  # ln 1024 / ln 64
        ({"type": "drope", "factor": 1.0}, "no pair rotates"),
    ],
)  # fmt: skip
def test_what_a_scaling_does_not_change_is_left_out(settings, text):
    (line,) = describe_scaling(RotaryLayers(GEOMETRY, 4), parse_scaling(settings), 1024)
    assert line == f"{settings['type']}: {text}"
