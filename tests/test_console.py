"""What the terminal shows before the work starts."""

import io

import pytest
from rich.console import Console

from rope_jax.console import describe_scaling, plain_console, print_overview
from rope_jax.rope import RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.layers import LayerOverride

GEOMETRY = RotaryGeometry(rotary_dim=8, base=10000.0, train_length=64)


@pytest.mark.parametrize("make", [plain_console, Console])
def test_names_are_printed_as_they_are(make):
    stream = io.StringIO()
    facts = {"[red]run": "[/] :smile:", "scalings": ["one", "[b]two"]}
    print_overview(make(file=stream, width=60), "training [/]", facts)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [
        "training [/]",
        "  [red]run  [/] :smile:",
        "  scalings  one",
        "            [b]two",
    ]


def test_layers_of_one_kind_share_a_line():
    none, yarn = parse_scaling({"type": "none"}), parse_scaling({"type": "yarn", "factor": 4.0})
    pattern = LayerOverride(), LayerOverride(scaling=none)
    (line,) = describe_scaling(RotaryLayers(GEOMETRY, 4), none, 64)
    assert line == "none: wavelengths 6.283 to 6283 tokens, θ × 1, m 1"
    lines = describe_scaling(RotaryLayers(GEOMETRY, 4, pattern, 8), yarn, 256, "yarn-4")
    assert [line.partition(", base")[0] for line in lines] == (
        ["layers 0, 2: yarn", "layers 1, 3: none"]
    )
    assert lines[1].endswith("yarn-4: wavelengths 6.283 to 6283 tokens, θ × 1, m 1")
