"""What --help says about keys: an overview that fits a screen or two, and all about each key."""

import pytest

from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.inspection import MapsConfig, ScalingConfig
from rope_jax.config.key_help import key_overview, key_section
from rope_jax.config.keys import TAG_KEYS, sections
from rope_jax.config.presentation import CompareConfig
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.tasks import KeyTokensConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError

SCHEMAS = [
    *(Config, SweepConfig, GridConfig, FitConfig, KeyTokensConfig),
    *(CompareConfig, ScalingConfig, MapsConfig),
]


def words(text):
    return " ".join(text.split())


def keys_by_json_schema(schema):
    """Return {dotted key: [its JSON schema in every union member that has it]}; N: list element."""
    root = schema.model_json_schema(mode="serialization")
    keys = {}

    def walk(node, prefix):
        """Collect the keys below a node; return whether there are any."""
        while "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        found = False
        for choice in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            found |= walk(choice, prefix)
        if "items" in node:
            found |= walk(node["items"], f"{prefix}N.")
        for name, inner in node.get("properties", {}).items():
            found = True
            if not walk(inner, f"{prefix}{name}."):
                keys.setdefault(prefix + name, []).append(inner)
        return found

    walk(root, "")
    return keys


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_key_of_every_type_is_explained(schema):
    """With its description and default, by its own name and in the help of its section."""
    keys = keys_by_json_schema(schema)
    assert keys
    for key, members in keys.items():
        if key.rpartition(".")[2] in TAG_KEYS:
            continue
        section = key.rpartition(".")[0]
        texts = [words(" ".join(key_section(schema, key, 80)))]
        if section:
            texts.append(words(" ".join(key_section(schema, section, 80))))
        for text in texts:
            for each in members:
                assert words(each["description"]) in text, key
                if isinstance(each.get("default"), float):
                    assert f"= {each['default']}" in text, key


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_overview_has_every_key_that_is_in_no_union(schema):
    lines = key_overview(schema, "train.py", 80)
    assert [line for line in lines if len(line) > 80] == []
    assert len(lines) < 140
    names = [line.split()[0].rstrip(":,") for line in lines if line.strip()]
    found = sections(schema)
    for section, models in found.items():
        above = ["", *(section[:i] for i, letter in enumerate(section) if letter == ".")]
        if len(models) > 1 or any(len(found.get(name, [])) > 1 for name in above):
            continue
        for name in models[0].model_fields:
            assert name in names or f"{name}.N" in names, f"{section}.{name}"


def test_a_line_has_the_type_the_default_and_a_description():
    lines = key_overview(Config, "train.py", 80)
    assert "  hidden_size: int = 128            width of the residual stream" in lines
    assert "  steps: int, required              number of optimizer steps" in lines
    assert "  step: int or null                 training step of the checkpoint, 0 of an …" in lines
    assert "  layout: half|interleaved = half   which dimensions form a pair; Hugging …" in lines
    assert "  positions: by type = plain        how the tokens of a training window are …" in lines
    assert "      types: plain, randomized, pose" in lines


def test_a_union_lists_the_keys_of_each_type():
    lines = key_section(Config, "rope.scaling", 100)
    assert lines[0] == "rope.scaling: by type = none"
    text = "\n".join(lines)
    assert "\n    base: float = 500000.0\n        b', which replaces rope.base\n" in text
    assert text.index("\n  abf: Adjusted base frequency: θ_i") < text.index("\n    base: float")
    assert "\n  every type:\n    query_scale: by type = null\n" in text


def test_types_that_share_a_key_are_told_apart():
    lines = key_section(Config, "stages.0.scaling.factor", 120)
    assert lines == key_section(Config, "stages.N.scaling.factor", 120)
    shared = "s, how many times longer the context becomes"
    first, about, *_ = lines
    others = lines[lines.index("stages.N.scaling.factor: float = 1.0") :][:3]
    assert first == "stages.N.scaling.factor: float, required"
    assert about == f"    {shared}"
    assert lines[2].startswith("    [pi, ntk, ntk_by_parts, yarn, mixed_base")  # or more
    assert others == [
        "stages.N.scaling.factor: float = 1.0",
        "    a, how fast s grows; 1: s = n/L",
        "    [dynamic_ntk]",
    ]


def test_a_list_may_be_named_without_an_index():
    assert key_section(Config, "stages", 80) == key_section(Config, "stages.N", 80)


def test_an_unknown_key_is_an_error_with_the_nearest():
    with pytest.raises(UserError) as caught:
        key_section(Config, "model.hiden_size", 80)
    assert str(caught.value) == (
        "--help model.hiden_size: there is no such key; did you mean model.hidden_size?"
    )
