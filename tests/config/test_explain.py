"""Bad input: one line that names the key, what is wrong, and the nearest valid choice.

tests/bad_input.yaml has every message; here is which key a message names.
"""

import json

import pytest

from tests.config.examples import PLAIN

TOP = (
    "the keys here are name, runs_dir, seed, log_every_steps, init_from, imported, model, "
    "rope, data, tokenizer, optim, stages, validation, sweep, checkpoint, mesh, distributed"
)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        # unknown keys
        ("nme=x", "nme: unknown key; did you mean name?"),
        ("zzz=1", f"zzz: unknown key; {TOP}"),
        ("hidden_size=64", "hidden_size: unknown key; did you mean model.hidden_size?"),
        ("model.hiden_size=64", "model.hiden_size: unknown key; did you mean model.hidden_size?"),
        ("stages.0.stepz=3", "stages.0.stepz: unknown key; did you mean stages.0.steps?"),
        (
            "rope.scaling.type=yarn rope.scaling.factor=2 rope.scaling.beta_fats=3",
            "rope.scaling.beta_fats: unknown key; did you mean rope.scaling.beta_fast?",
        ),
        (
            "stages.0.scaling.type=pi stages.0.scaling.factor=2 stages.0.scaling.factr=3",
            "stages.0.scaling.factr: unknown key; did you mean stages.0.scaling.factor?",
        ),
        (
            "stages.0.scaling.type=pi stages.0.scaling.fctor=3",
            "stages.0.scaling.fctor: unknown key; did you mean stages.0.scaling.factor?"
            " (and 1 more)",
        ),
        (
            "data.type=text data.files=[a] data.flies=[b]",
            "data.flies: unknown key; did you mean data.files?",
        ),
        (
            "validation.zzz=3",
            "validation.zzz: unknown key; the keys here are every_steps, batches",
        ),
    ],
)
def test_unknown_keys_are_explained(complaint, overrides, message):
    assert complaint(PLAIN, *overrides.split(" ")) == f"C.yaml: {message}"


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
            ["rope.base=1", "rope.layer_pattern=[{}, {scaling: " + YARN + "}]"],
            f"rope.base: {BASE_1}",
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
            ["rope.scaling={type: explicit, inv_freq: [[1], [1], [1]]}"],
            "rope.scaling.inv_freq: 3 entries for 4 layers",
        ),
        (
            ["model.num_hidden_layers=1", "rope.scaling={type: explicit, inv_freq: [[1, 1]]}"],
            "rope.scaling.inv_freq: 2 numbers for the 16 pairs of rotary_dim 32",
        ),
        (
            ["rope.layer_pattern=[{}, {}, {}, {}, {}]"],
            "rope.layer_pattern: has 5 elements, more than ",
        ),
    ],
)
def test_a_scaling_that_does_not_fit_a_layer_is_reported_at_the_key_given(
    complaint, overrides, message
):
    assert complaint(PLAIN, *overrides).startswith(f"C.yaml: {message}")


def test_every_row_of_explicit_numbers_is_checked(complaint):
    rows = [[1.0] * 16, [1.0] * 16, [1.0] * 16, [1.0] * 15]
    message = complaint(PLAIN, f"rope.scaling={{type: explicit, factors: {rows}}}")
    assert message.startswith("C.yaml: rope.scaling.factors: 15 numbers for the 16 pairs")


def test_numbers_from_a_file_are_named_by_their_key(complaint, tmp_path):
    path = tmp_path / "numbers.json"
    override = f"rope.scaling={{type: explicit, path: {path}}}"
    for content, message in [
        ({"inv_freq": [1, "x"]}, "rope.scaling.inv_freq.1: should be a number, not 'x'"),
        (
            {"factors": [[1, 2], [1, 0]]},
            "rope.scaling.factors.1.1: should be greater than 0, not 0",
        ),
        ({"factors": 3}, "rope.scaling.factors: should be a list, not 3"),
    ]:
        path.write_text(json.dumps(content))
        assert complaint(PLAIN, override) == f"C.yaml: {message}"


@pytest.mark.parametrize(
    ("override", "right"),
    [
        ("rope.scaling={type: resonance, factor: 2}", "rope.scaling.inner.factor"),
        ("rope.scaling={type: yarn, factor: 2, beta: 1}", "rope.scaling.query_scale.beta"),
        ("rope.query_scale={type: logn}", "rope.scaling.query_scale"),
        ("rope.layer_pattern=[{type: drope}]", "rope.layer_pattern.0.scaling.type"),
        ("stages.0.factor=2", "stages.0.scaling.factor"),
        ("steps=2", "stages.N.steps"),
    ],
)
def test_a_key_that_belongs_one_section_deeper_is_suggested_there(complaint, override, right):
    message = complaint(PLAIN, override)
    assert f"unknown key; did you mean {right}?" in message


def test_a_prefix_of_several_types_suggests_all_of_them(complaint):
    # Hugging Face's name for dynamic_ntk, which resembles the others just as much
    message = complaint(PLAIN, "rope.scaling.type=dynamic")
    assert message.endswith("; did you mean dynamic_ntk, dynamic_pi or dynamic_yarn?")


def test_several_mistakes_are_counted(complaint):
    text = "name: a/b\nmodel: {hiden_size: 3, head_dim: -2}\nseed: x\n"
    assert complaint(text) == (
        "C.yaml: model.hiden_size: unknown key; did you mean model.hidden_size? (and 4 more)"
    )


def test_a_key_is_never_suggested_for_itself(complaint):
    # the default type is stdlib, which has no files
    message = complaint(PLAIN, "data.files=[a]")
    assert message.startswith("C.yaml: data.files: unknown key")
    assert "did you mean data.files?" not in message


def test_a_mistake_in_a_later_stage_names_the_stage(complaint):
    stage = "{steps: 200, seq_len: 8, batch_size: 1, learning_rate: 0.1}"
    text = f"name: a\nstages: [{stage}, {stage}, {stage}]\n"
    assert complaint(text, "stages.2.steps=100", "optim.warmup_steps=100") == (
        "C.yaml: optim.warmup_steps: 100 is not less than the 100 steps of the schedule that "
        "starts at stages[2]; leave it out for a tenth of them"
    )
    # without a learning rate of its own a stage continues the schedule before it
    assert complaint(text, "stages.1.learning_rate=null", "optim.warmup_steps=300") == (
        "C.yaml: optim.warmup_steps: 300 is not less than the 200 steps of the schedule that "
        "starts at stages[2]; leave it out for a tenth of them"
    )
    assert complaint(text, "stages.2.learning_rate=null", "optim.warmup_steps=200") == (
        "C.yaml: optim.warmup_steps: 200 is not less than the 200 steps of the schedule that "
        "starts at stages[0]; leave it out for a tenth of them"
    )


@pytest.mark.parametrize("override", ["seed", "=3", "", "--seed=3"])
def test_what_is_no_override_is_explained(complaint, override):
    message = f"{override}: not an override; write key=value (see --help)"
    assert complaint(PLAIN, override) == message
