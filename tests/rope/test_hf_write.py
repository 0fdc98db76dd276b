"""Strategies written as Hugging Face configs, and read again."""

import json

import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from rope_jax.rope.hf import HF_FORMS, from_hf, to_hf
from tests.rope.test_hf import assert_same, numbers
from tests.rope.test_strategies import scaling


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_written_or_refused_for_lack_of_a_form(name):
    geometry, made = RotaryGeometry(64, 1e4, 2048), scaling(name, pairs=32)
    assert set(HF_FORMS) == set(STRATEGIES)
    if HF_FORMS[name] is None:
        with pytest.raises(ValueError, match=f"^type: {name} has no form in Hugging Face's config"):
            to_hf(geometry, made)
        return
    written = to_hf(geometry, made, head_dim=64 if name == "p_rope" else 80)
    assert json.loads(json.dumps(written)) == written
    again = from_hf(written)
    assert again[0].rotary_dim == 64
    for length in (1, 2048, 2049, 10**6):
        assert_same(numbers(again, length), numbers((geometry, made), length))


def test_the_papers_ramp_is_written_as_longrope():
    geometry = RotaryGeometry(64, 1e4, 2048)
    made = parse_scaling({"type": "yarn", "factor": 8.0, "ramp": "rotations"})
    written = to_hf(geometry, made)
    assert written["rope_scaling"]["rope_type"] == "longrope"
    assert_same(numbers(from_hf(written)), numbers((geometry, made)))


PI = {"type": "pi", "factor": 2.0}
DYNAMIC = {"type": "dynamic_ntk"}


@pytest.mark.parametrize(
    ("settings", "how", "message"),
    [
        (PI | {"query_scale": {"type": "logn"}}, {}, "query_scale: logn has no"),
        (PI | {"query_scale": {"type": "ministral"}}, {}, "query_scale: min"),
        ({"type": "resonance", "inner": {"type": "dynamic_pi"}}, {}, "type: resonance over a leng"),
        ({"type": "resonance", "inner": {"type": "cope"}}, {}, "type: resonance has pairs that do"),
        ({"type": "explicit", "inv_freq": [0.1] * 31 + [0.0]}, {}, "type: explicit has pairs that"),
        ({"type": "explicit", "inv_freq": [[0.1] * 32] * 2}, {}, "inv_freq: has one entry per lay"),
        (PI, {"head_dim": 32}, "head_dim: 32 is below rotary_dim 64"),
        (PI, {"max_position_embeddings": 0}, "max_position_embeddings: should be a whole number "),
        (DYNAMIC, {"max_position_embeddings": 99}, "max_position_embeddings: is 99, but dynamic "),
    ],
)
def test_what_cannot_be_written_is_refused(settings, how, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        to_hf(RotaryGeometry(64, 1e4, 2048), parse_scaling(settings), **how)


def test_partial_rotary_factor_truncates_to_the_right_dimension():
    for rotary_dim in range(2, 89, 2):  # 30 / 88 · 88 is below 30
        geometry = RotaryGeometry(rotary_dim, 1e4, 128)
        written = to_hf(geometry, parse_scaling("none"), head_dim=88)
        assert from_hf(written)[0] == geometry
        assert int(88 * written.get("partial_rotary_factor", 1.0)) == rotary_dim


@pytest.mark.usefixtures("wrong_types")
def test_a_config_that_is_not_a_mapping_is_refused():
    with pytest.raises(ValueError, match=r"^config: should be a mapping"):
        from_hf(None)
