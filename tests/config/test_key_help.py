"""What --help says about keys: an overview that fits a screen or two, and all about each key."""

import pytest

from rope_jax.config.comparison import CompareConfig
from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.inspection import MapsConfig, ScalingConfig
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.key_tokens import KeyTokensConfig
from rope_jax.config.keys import list_keys
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.rope import STRATEGIES

SCHEMAS = [
    *(Config, SweepConfig, GridConfig, FitConfig, KeyTokensConfig),
    *(CompareConfig, ScalingConfig, MapsConfig),
]


def words(text):
    return " ".join(text.split())


def listed(overview):
    """Return the full names of the keys and sections in an overview."""
    names, section = [], ""
    for line in overview:
        name = line.strip().partition(" ")[0].rstrip(":,")
        if not line.startswith(" "):
            section = name
            names.append(name)
        elif not line.startswith("   "):
            names.append(f"{section}.{name}" if section else name)
    return set(names)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_key_is_reached_from_the_overview(schema):
    """It has a line there, or it lies in a union that has one; and its own help says all."""
    names = listed(key_overview(schema, "train.py", 80))
    for key in list_keys(schema):
        whole = key.name.removesuffix(".type")
        assert any(whole == name or whole.startswith(f"{name}.") for name in names), key.name
        said = words(" ".join(key_section(schema, key.name, 80)))
        assert words(key.description) in said
        for text in (key.default, *key.type.split("|")):
            assert key.type in ("section", "list") or words(text) in said


@pytest.mark.parametrize("schema", SCHEMAS)
def test_lines_of_the_overview_fit_80_columns(schema):
    lines = key_overview(schema, "train.py", 80)
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) < 140


def test_the_types_of_a_union_are_listed_once():
    text = "\n".join(key_overview(Config, "train.py", 80))
    types = words(text).split("types: ")[1:]
    everywhere = [types_ for types_ in types if types_.startswith(", ".join(list(STRATEGIES)[:3]))]
    assert len(everywhere) == 1
    assert text.count("types and keys: those of rope.scaling") == 3


def test_a_line_has_the_type_the_default_and_a_description():
    lines = key_overview(Config, "train.py", 80)
    assert "  hidden_size: int = 128            width of the residual stream" in lines
    assert "  steps: int, required              number of optimizer steps" in lines
    assert "  step: int or null                 training step of the checkpoint, 0 of an …" in lines
    assert "  norm_placement = before           one of before, after, both" in lines


def test_a_union_lists_the_keys_of_each_type():
    lines = key_section(Config, "rope.scaling", 80)
    assert "  pi            factor" in lines
    assert "  none          –" in lines
    assert "  abf           base" in lines
    assert "  every type: query_scale" in lines
    assert "  power      s, p" in lines


def test_an_index_may_be_a_number():
    assert key_section(Config, "stages.0.steps", 80) == key_section(Config, "stages.N.steps", 80)
    assert key_section(Config, "stages", 80) == key_section(Config, "stages.N", 80)


def test_a_repeated_union_leads_to_its_first_place():
    lines = key_section(Config, "stages.0.scaling.beta_fast", 80)
    assert lines[0] == "stages.N.scaling.beta_fast has the keys of rope.scaling.beta_fast:"
    assert lines[2] == "rope.scaling.beta_fast: float = 32.0"
    assert key_section(Config, "stages.0.scaling", 80)[-1] == (
        "The keys of rope.scaling: --help rope.scaling"
    )


def test_an_unknown_key_is_an_error_with_the_nearest():
    with pytest.raises(UserError) as caught:
        key_section(Config, "model.hiden_size", 80)
    assert str(caught.value) == (
        "--help model.hiden_size: there is no such key; did you mean model.hidden_size?"
    )
