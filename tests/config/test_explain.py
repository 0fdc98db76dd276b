"""Bad input: one line that names the key, what is wrong, and the nearest valid choice.

tests/bad_input.yaml has the messages; here is which key a message names, wherever it is.
"""

import copy
import json

import pytest
import yaml

from rope_jax.config.explain import validate
from rope_jax.config.sweep import SweepConfig
from rope_jax.config.training import Config
from rope_jax.errors import UserError
from rope_jax.rope.keys import TAG_KEYS
from tests.config.examples import FULL, PLAIN, SWEEP

TOP = (
    "the keys here are name, runs_dir, seed, log_every_steps, init_from, imported, model, "
    "rope, data, tokenizer, optim, stages, validation, sweep, checkpoint, mesh, distributed"
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("nme=x", "nme: unknown key; did you mean name?"),
        ("zzz=1", f"zzz: unknown key; {TOP}"),
        ("hidden_size=64", "hidden_size: unknown key; did you mean model.hidden_size?"),
        ("steps=2", "steps: unknown key; did you mean stages.N.steps?"),
        (
            "stages.0.factor=2",
            "stages.0.factor: unknown key; did you mean stages.0.scaling.factor?",
        ),
        (
            "rope.scaling.type=resonance rope.scaling.factor=2",
            "rope.scaling.factor: unknown key; did you mean rope.scaling.inner.factor?",
        ),
        (
            "rope.layer_pattern=[{type: drope}]",
            "rope.layer_pattern.0.type: unknown key; did you mean "
            "rope.layer_pattern.0.scaling.type?",
        ),
        (
            "stages.0.scaling.type=pi stages.0.scaling.fctor=3",
            "stages.0.scaling.fctor: unknown key; did you mean stages.0.scaling.factor?"
            " (and 1 more)",
        ),
        (
            "validation.zzz=3",
            "validation.zzz: unknown key; the keys here are every_steps, batches",
        ),
        # the default type is stdlib, which has no files
        (
            "data.files=[a]",
            "data.files: unknown key; it belongs to data.type text, jsonl or parquet",
        ),
    ],
)
def test_unknown_keys_are_explained(complaint, overrides, message):
    overrides = [overrides] if "[{" in overrides else overrides.split(" ")
    assert complaint(PLAIN, *overrides) == f"C.yaml: {message}"


YARN = "{type: yarn, factor: 2}"
BASE_1 = "yarn needs a base above 1 (all pairs turn alike at base 1)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # the key is the one that was given: in the layer, in the stage, or for all
        (["rope.base=1", f"rope.scaling={YARN}"], f"rope.base: {BASE_1}"),
        (
            ["rope.layer_pattern=[{}, {base: 1}]", f"stages.0.scaling={YARN}"],
            f"rope.layer_pattern.1.base: {BASE_1}",
        ),
        (
            ["rope.layer_pattern=[{}, {}, {scaling: {type: cope, c: 17}}]"],
            "rope.layer_pattern.2.scaling.c: 17 ",
        ),
        (
            [
                "rope.layer_pattern=[{}, {scaling: {type: none}}]",
                "stages.0.scaling={type: cope, c: 17}",
            ],
            "stages.0.scaling.c: 17 ",
        ),
        (
            ["rope.scaling={type: resonance, inner: {type: cope, c: 17}}"],
            "rope.scaling.inner.c: 17 ",
        ),
        (
            ["stages.0.mixed={fraction: 0.5, seq_len: 64, scaling: {type: cope, c: 17}}"],
            "stages.0.mixed.scaling.c: 17 ",
        ),
        (
            ["rope.scaling={type: explicit, inv_freq: [[1], [1], [1]]}"],
            "rope.scaling.inv_freq: 3 entries for 4 layers",
        ),
        (
            [f"rope.scaling={{type: explicit, factors: {[[1.0] * 16] * 3 + [[1.0] * 15]}}}"],
            "rope.scaling.factors: 15 numbers for the 16 pairs",
        ),
    ],
)
def test_a_scaling_that_does_not_fit_a_layer_is_reported_at_the_key_given(
    complaint, overrides, message
):
    assert complaint(PLAIN, *overrides).startswith(f"C.yaml: {message}")


def test_numbers_from_a_file_are_named_by_their_key(complaint, tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"factors": [[1, 2], [1, 0]]}))
    message = complaint(PLAIN, f"rope.scaling={{type: explicit, path: {path}}}")
    assert message == "C.yaml: rope.scaling.factors.1.1: should be greater than 0, not 0"


def test_several_mistakes_are_counted(complaint):
    text = "name: a/b\nmodel: {hiden_size: 3, head_dim: -2}\nseed: x\n"
    assert complaint(text) == (
        "C.yaml: model.hiden_size: unknown key; did you mean model.hidden_size? (and 4 more)"
    )


def test_a_mistake_in_a_later_stage_names_the_stage(complaint):
    stage = "{steps: 200, seq_len: 8, batch_size: 1, learning_rate: 0.1}"
    text = f"name: a\nstages: [{stage}, {stage}, {stage}]\n"
    # without a learning rate of its own a stage continues the schedule before it
    for override, warmup, steps, first in [
        ("stages.2.steps=100", 100, 100, 2),
        ("stages.1.learning_rate=null", 300, 200, 2),
        ("stages.2.learning_rate=null", 200, 200, 0),
    ]:
        message = complaint(text, override, f"optim.warmup_steps={warmup}")
        assert message == (
            f"C.yaml: optim.warmup_steps: {warmup} is not less than the {steps} steps of the "
            f"schedule that starts at stages[{first}]; leave it out for a tenth of them"
        )


# Every key of two full configs is broken in turn


def sections(node, path=()):
    """Yield the path of every mapping in a raw config."""
    if isinstance(node, dict):
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from sections(inner, (*path, key))


def at(node, path):
    for part in path:
        node = node[part]
    return node


def raw_configs():
    """Return FULL and SWEEP as raw configs, each with its schema."""
    sweep = yaml.safe_load(SWEEP)
    sweep["scalings"] = [s if isinstance(s, dict) else {"type": s} for s in sweep["scalings"]]
    return [(Config, yaml.safe_load(FULL)), (SweepConfig, sweep)]


def assert_complaint(schema, raw, begins):
    with pytest.raises(UserError) as caught:
        validate(schema, raw, "C")
    assert str(caught.value).startswith(f"C: {begins}")


def test_a_misspelt_key_and_a_wrong_value_are_named_wherever_they_are():
    seen = 0
    for schema, full in raw_configs():
        for path in sections(full):
            for key, value in at(full, path).items():
                dotted = ".".join(map(str, (*path, key)))
                if isinstance(value, str | int | float):
                    raw = copy.deepcopy(full)
                    at(raw, path)[key] = {"a": "mapping"}
                    assert_complaint(schema, raw, f"{dotted}: ")
                    seen += 1
                if key not in (*TAG_KEYS, "train", "test"):
                    raw = copy.deepcopy(full)
                    at(raw, path)[key + "x"] = at(raw, path).pop(key)
                    says = f"{dotted}x: unknown key; did you mean {dotted}?"
                    assert_complaint(schema, raw, says)
    assert seen > 80


def test_a_missing_key_is_named_wherever_it_is():
    missing = {
        Config: ["name", "stages", "stages.1.seq_len", "rope.scaling.factor", "data.files"],
        SweepConfig: ["scalings.2.factor", "tasks.9.mask"],
    }
    for schema, full in raw_configs():
        for dotted in missing[schema]:
            raw = copy.deepcopy(full)
            *path, last = (int(p) if p.isdigit() else p for p in dotted.split("."))
            del at(raw, path)[last]
            assert_complaint(schema, raw, f"{dotted}: is required but was not given")
