"""Strategies written as Hugging Face configs, and read again."""

import json

import pytest

from rope_jax.rope import STRATEGIES, RotaryGeometry, parse_scaling
from rope_jax.rope.hf import HF_FORMS, from_hf, to_hf
from tests.rope.test_hf import assert_same, numbers
from tests.rope.test_strategies import scaling


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_a_form_or_says_that_it_has_none(name):
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


def test_the_papers_ramp_goes_by_its_numbers():
    geometry = RotaryGeometry(64, 1e4, 2048)
    made = parse_scaling({"type": "yarn", "factor": 8.0, "ramp": "rotations"})
    written = to_hf(geometry, made)
    assert written["rope_scaling"]["rope_type"] == "longrope"
    assert_same(numbers(from_hf(written)), numbers((geometry, made)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"type": "pi", "factor": 2.0, "query_scale": {"type": "logn"}},
            "query_scale: logn has no",
        ),
        ({"type": "pi", "factor": 2.0, "query_scale": {"type": "ministral"}}, "query_scale: min"),
        ({"type": "resonance", "inner": {"type": "dynamic_pi"}}, "type: resonance over a length-d"),
        ({"type": "resonance", "inner": {"type": "cope"}}, "type: resonance has pairs that do not"),
        ({"type": "explicit", "inv_freq": [0.1] * 31 + [0.0]}, "type: explicit has pairs that do"),
        ({"type": "explicit", "inv_freq": [[0.1] * 32] * 2}, "inv_freq: has one entry per layer"),
    ],
)
def test_what_has_no_form(settings, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        to_hf(RotaryGeometry(64, 1e4, 2048), parse_scaling(settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_dim": 32}, "head_dim: 32 is below rotary_dim 64"),
        ({"head_dim": 0}, "head_dim: 0 is below rotary_dim 64"),
        ({"max_position_embeddings": -1}, "max_position_embeddings: -1 is not at least 1"),
        ({"max_position_embeddings": 99}, "max_position_embeddings: is 99, but dynamic scaling"),
    ],
)
def test_lengths_and_widths_that_cannot_be_written(settings, message):
    dynamic = parse_scaling({"type": "dynamic_ntk"})
    with pytest.raises(ValueError, match=f"^{message}"):
        to_hf(RotaryGeometry(64, 1e4, 2048), dynamic, **settings)


@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(2 * k, 96) for k in range(1, 49)])
def test_partial_rotary_is_written_so_that_it_is_cut_off_right(rotary_dim, head_dim):
    geometry = RotaryGeometry(rotary_dim, 1e4, 128)
    written = to_hf(geometry, parse_scaling({"type": "none"}), head_dim=head_dim)
    assert from_hf(written)[0] == geometry
    assert int(head_dim * written.get("partial_rotary_factor", 1.0)) == rotary_dim


@pytest.mark.usefixtures("wrong_types")
def test_a_config_that_is_not_a_mapping_is_refused():
    with pytest.raises(ValueError, match=r"^config: should be a mapping"):
        from_hf(None)
