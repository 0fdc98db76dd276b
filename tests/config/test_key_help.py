"""What --help says about keys: an overview that fits a screen or two, and all about each key."""

import pytest

from rope_jax.config.fit import FitConfig
from rope_jax.config.inspection import MapsConfig
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.schema import TAG_KEYS, sections
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import TrainingConfig


@pytest.mark.parametrize("schema", [TrainingConfig, SweepConfig, FitConfig, MapsConfig])
def test_every_key_of_every_type_is_explained(schema):
    """With its description, by its own name and in the help of its section."""
    for section, models in sections(schema).items():
        text = " ".join("\n".join(key_section(schema, section, 80)).split()) if section else None
        for name in {name for model in models for name in model.model_fields} - {*TAG_KEYS}:
            own = " ".join(
                "\n".join(key_section(schema, f"{section}.{name}".lstrip("."), 80)).split()
            )
            for model in models:
                field = model.model_fields.get(name)
                if field is not None and field.description:
                    about = " ".join(field.description.split())
                    assert about in own
                    assert text is None or about in text


def test_the_overview_has_every_key_that_is_in_no_union():
    lines = key_overview(TrainingConfig, "train.py", 80)
    assert max(map(len, lines)) <= 80
    assert len(lines) < 140
    names = [line.split()[0].rstrip(":,") for line in lines if line.strip()]
    found = sections(TrainingConfig)
    for section, models in found.items():
        above = ["", *(section[:i] for i, letter in enumerate(section) if letter == ".")]
        if len(models) > 1 or any(len(found.get(name, [])) > 1 for name in above):
            continue
        for name in models[0].model_fields:
            assert name in names or f"{name}.N" in names, f"{section}.{name}"
    assert "  hidden_size: int = 128            width of the residual stream" in lines
    assert "  steps: int, required              number of optimizer steps" in lines
    assert "  step: int or null                 training step; null: the newest" in lines
    assert "  positions: by type = plain        how tokens are numbered" in lines
    assert "      types: plain, randomized, pose" in lines


def test_a_union_lists_its_types_and_their_keys():
    lines = key_section(TrainingConfig, "rope.scaling", 100)
    assert lines[0] == "rope.scaling: by type = none"
    text = "\n".join(lines)
    assert "\n  abf: Adjusted base frequency: θ_i" in text
    assert "\n  base: float = 500000.0\n      b', which replaces rope.base\n      [abf]\n" in text
    assert "\n  query_scale: by type = null\n" in text


def test_types_that_share_a_key_are_told_apart():
    lines = key_section(TrainingConfig, "stages.0.scaling.factor", 120)
    assert lines == key_section(TrainingConfig, "stages.N.scaling.factor", 120)
    assert lines[:2] == [
        "stages.N.scaling.factor: float, required",
        "    s, how many times longer the context becomes",
    ]
    assert lines[2].startswith("    [pi, ntk, ntk_by_parts, yarn, mixed_base")  # or more
    others = lines[lines.index("stages.N.scaling.factor: float = 1.0") :][:3]
    assert others[1:] == ["    a, how fast s grows; 1: s = n/L", "    [dynamic_ntk]"]


def test_a_list_may_be_named_without_an_index():
    assert key_section(TrainingConfig, "stages", 80) == key_section(TrainingConfig, "stages.N", 80)
