"""Configs that the tests of this folder share."""

from pathlib import Path

from tests.rope.test_strategies import scaling


def settings_of(kind):
    """Return settings of a scaling of this type, for a model of 4 layers and 16 pairs per head."""
    query_scale = {"type": "power", "s": 1.5}
    return scaling(kind, 2.0, pairs=16, query_scale=query_scale).model_dump(mode="json")


PLAIN = """\
name: plain
stages:
  - {steps: 200, seq_len: 128, batch_size: 16}
"""

FULL = Path(__file__).with_name("full.yaml").read_text()
SWEEP = Path(__file__).with_name("sweep.yaml").read_text()
