"""What a scaling does, in words."""

from rope_jax.report.scalings import describe_scaling
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling

NONE, YARN = parse_scaling("none"), parse_scaling({"type": "yarn", "factor": 4.0})


def test_descriptions():
    geometry = RotaryGeometry(rotary_dim=8, base=10000.0, train_length=64)
    pattern = LayerOverride(), LayerOverride(scaling=NONE)
    assert describe_scaling(RotaryLayers(geometry, 4, pattern, 8), YARN, 256, "yarn-4") == [
        "yarn-4, layers 0, 2: yarn, base 10,000; slowest wavelength 25,130 tokens; "
        "frequencies × 1…0.25; m 1.14",
        "yarn-4, layers 1, 3: none, base 10,000; slowest wavelength 6,283 tokens",
    ]
    for settings, text in (
        ({"type": "pi", "factor": 16.0}, "slowest wavelength 100,500 tokens; frequencies × 0.0625"),
        ({"type": "none", "query_scale": {"type": "logn"}},
         "slowest wavelength 6,283 tokens; queries × 1…1.67 (logn)"),  # ln 1024 / ln 64
        ({"type": "drope", "factor": 1.0}, "no pair rotates"),
    ):  # fmt: skip
        lines = describe_scaling(RotaryLayers(geometry, 4), parse_scaling(settings), 1024)
        assert lines == [f"{settings['type']}: {text}"]
