"""The list of keys that --help shows."""

import re
from typing import Annotated, Literal

import pytest
from pydantic import Field, create_model

from rope_jax.config.annotations import TAG_KEYS
from rope_jax.config.fit import FitConfig
from rope_jax.config.grid import GridConfig
from rope_jax.config.key_tokens import KeyTokensConfig
from rope_jax.config.keys import list_keys
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.rope import (
    QUERY_SCALES,
    STRATEGIES,
)
from tests.config.examples import EXTENDING


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


def rows_of(schema):
    """Return {dotted key: [type, default, description]}."""
    return {key.name: [key.type, key.default, key.description] for key in list_keys(schema)}


def row_of(key, rows):
    """Return the row of a key: its own, or the one where its union is listed first."""
    for place in (key[:end] for end, letter in enumerate(key) if letter == "."):
        tag = next((f"{place}.{tag}" for tag in TAG_KEYS if f"{place}.{tag}" in rows), "")
        about = rows.get(tag, ("", "", ""))[2]
        if elsewhere := re.search(r"; same keys as ([\w.]+)", about):
            if key == tag:
                break
            return row_of(elsewhere[1] + key.removeprefix(place), rows)
    return rows[key]


@pytest.mark.parametrize("schema", [Config, SweepConfig, GridConfig, FitConfig, KeyTokensConfig])
def test_every_key_is_listed_once_and_described(schema):
    rows = rows_of(schema)
    assert len(rows) == len(list(list_keys(schema)))
    keys = keys_by_json_schema(schema)
    assert len(keys) > 8
    for key, members in keys.items():
        about = row_of(key, rows)[2]
        if key.rpartition(".")[2] not in TAG_KEYS:
            # the descriptions of all types that share the key
            assert all(each["description"] in about for each in members), key
    for key, (kind, default, about) in rows.items():
        assert about, f"{key} has no description"
        if key not in keys:
            # Other rows are headings of lists and sections.
            assert kind in ("list", "section")
            assert default == ""
            assert any(other.startswith(key + ".") for other in rows)


@pytest.mark.parametrize("schema", [Config, SweepConfig])
def test_a_repeated_union_refers_to_its_first_place(schema):
    """No key of the repeated union has a row, and the place it refers to has rows of its own."""
    rows = rows_of(schema)
    seen = 0
    for key, (kind, _, about) in rows.items():
        if elsewhere := re.search(r"; same keys as ([\w.]+)", about):
            section = key.removesuffix("type")
            assert [other for other in rows if other.startswith(section)] == [key]
            first = rows[f"{elsewhere[1]}.type"]
            assert "; same keys as" not in first[2]
            # "a|b; other: c" where two types have keys of the same name
            assert set(re.split(r"\||; \w+: ", kind)) <= set(first[0].split("|"))
            seen += 1
    assert seen == {Config: 8, SweepConfig: 2}[schema]


def test_a_union_refers_only_to_a_place_that_lists_all_its_types():
    def kind(name, **annotations):
        fields = {key: (value, Field(description=key)) for key, value in annotations.items()}
        return create_model(name, type=(Literal[name], name), **fields)

    def one_of(first, second):
        return Annotated[first | second, Field(discriminator="type")]

    a, b, c = (kind(name, **{f"key_{name}": int}) for name in "abc")
    outer, other = kind("outer", part=one_of(a, b)), kind("other")
    fields_of = {
        "first": one_of(outer, other),
        "again": one_of(b, a),  # listed inside a type of another union
        "fewer": one_of(outer, other),
        "overlap": one_of(b, c),  # that place lists only one of them
    }
    schema = create_model("Schema", **{key: (value, ...) for key, value in fields_of.items()})
    rows = {key.name: key.description for key in list_keys(schema)}
    assert rows["again.type"].endswith("; same keys as first.part")
    assert rows["fewer.type"].endswith("; same keys as first")
    assert {key for key in rows if not key.endswith("type")} == {
        "first.part.key_a",
        "first.part.key_b",
        "overlap.key_b",
        "overlap.key_c",
    }


@pytest.mark.parametrize("schema", [Config, SweepConfig])
def test_the_default_of_every_type_is_shown(schema):
    """If the types of a union share a key with different defaults, each is shown."""
    rows = rows_of(schema)
    seen = 0
    for key, members in keys_by_json_schema(schema).items():
        defaults = {each["default"] for each in members if isinstance(each.get("default"), float)}
        for default in defaults:
            _, shown, about = row_of(key, rows)
            assert str(default) in f"{shown} {about}", f"{key} may be {defaults}"
        seen += len(defaults)
    assert seen > 20


def test_types_that_share_a_key_are_told_apart():
    rows = rows_of(Config)
    kind, default, about = rows["rope.scaling.factor"]
    assert kind == "float; longrope: float or null"
    assert default == "required; dynamic_ntk, p_rope, drope: 1.0; longrope: null; llama3: 8.0"
    assert about.startswith("s, how many times longer the context becomes; dynamic_ntk: a, how ")
    owners = [kind for kind in STRATEGIES if kind in (*EXTENDING, "dynamic_ntk")]
    assert about.endswith(f" [{', '.join(owners)}]")
    assert rows["rope.scaling.c"][0] == "int or null; drope: float or null"


def test_type_default_and_owners_are_shown():
    rows = rows_of(Config)
    assert rows["name"] == ["str", "required", "name of the run directory"]
    assert rows["model.num_key_value_heads"][:2] == ["int or null", "null"]
    assert rows["model.tie_word_embeddings"][:2] == ["bool", "true"]
    assert rows["model.dtype"][:2] == ["float32|bfloat16", "float32"]
    assert rows["rope.base"][:2] == ["float", "10000.0"]
    assert rows["rope.scaling.type"][:2] == ["|".join(STRATEGIES), "none"]
    assert rows["rope.scaling.beta_fast"][2].endswith(" [ntk_by_parts, yarn, dynamic_yarn]")
    assert rows["rope.scaling.mscale"][2].endswith(" [yarn]")
    assert rows["rope.scaling.query_scale.type"][:2] == ["|".join(QUERY_SCALES), "null"]
    assert rows["rope.scaling.query_scale.beta"][2].endswith(" [ministral]")
    plain = [kind for kind in STRATEGIES if kind not in ("resonance", "bucketed")]
    extending = [kind for kind in plain if STRATEGIES[kind].has_extension_factor()]
    assert rows["rope.scaling.inner.type"][:2] == [
        f"{'|'.join(plain)}; bucketed: {'|'.join(extending)}",
        "none; bucketed: required",
    ]
    assert rows["rope.layer_pattern.N.sliding_window"][:2] == ["int or null", "null"]
    assert rows["data.type"][:2] == ["stdlib|text|jsonl|parquet|hub", "stdlib"]
    assert rows["data.column"][:2] == ["str", "text"]
    assert rows["stages.N.scaling.type"] == [
        "|".join(STRATEGIES),
        "null",
        "scaling from this stage on; null: as before; same keys as rope.scaling",
    ]
    assert rows["stages.N.steps"][:2] == ["int", "required"]
    rows = rows_of(SweepConfig)
    assert rows["scalings.N.type"][0] == "|".join(["trained", *STRATEGIES])
    kind, default, about = rows["scalings.N.factor"]
    assert kind == "auto or float; dynamic_ntk: float; longrope: auto or float or null"
    assert default.startswith("required; ")
    assert about.startswith("s, how many times longer the context becomes; auto: length / ")
    assert rows["lengths"][:2] == ["list of int or null", "null"]
