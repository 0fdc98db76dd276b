"""What --help says about keys: an overview that fits a screen or two, and all about each key."""

import pytest

from rope_jax.config.fit import FitConfig
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.schema import TAG_KEYS, sections
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig


@pytest.mark.parametrize("schema", [TrainingConfig, SweepConfig, FitConfig])
def test_every_key_of_every_type_is_explained(schema):
    """With its description, by its own name and in the help of its section."""
    for section, models in sections(schema).items():
        text = " ".join("\n".join(key_section(schema, section, 80)).split()) if section else None
        for model in models:
            for name, field in model.model_fields.items():
                if name in TAG_KEYS or not field.description:
                    continue
                lines = key_section(schema, f"{section}.{name}".lstrip("."), 80)
                about = " ".join(field.description.split())
                assert about in " ".join("\n".join(lines).split())
                assert text is None or about in text


def test_the_overview_has_one_line_per_key():
    lines = key_overview(TrainingConfig, "train.py", 80)
    assert max(map(len, lines)) <= 80
    assert "  hidden_size: int = 128            width of the residual stream" in lines
    assert "  steps: int, required              number of optimizer steps" in lines
    assert "  step: int or null                 training step; null: the newest" in lines
    (positions,) = (line for line in lines if line.startswith("  positions: by type = plain "))
    assert "how tokens are numbered; types: plain" in positions


def test_a_union_lists_its_types_and_their_keys():
    lines = key_section(TrainingConfig, "rope.scaling", 120)
    assert lines[0].startswith("rope.scaling: by type = none")
    text = "\n".join(lines)
    assert "\n  abf: Adjusted base frequency: θ_i" in text
    assert "\n    base: float = 500000.0          b', which replaces rope.base\n" in text


def test_types_that_share_a_key_are_told_apart():
    lines = key_section(TrainingConfig, "stages.0.scaling.factor", 120)
    key = "stages.N.scaling.factor: float"
    assert f"{key}, required  s, how many times longer the context becomes" in lines
    assert f"{key} = 1.0  a, how fast s grows; 1: s = n/L" in lines
    assert key_section(TrainingConfig, "stages", 80) == key_section(TrainingConfig, "stages.N", 80)
