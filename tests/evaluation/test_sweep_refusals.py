"""What a sweep refuses before any work, and what it accepts."""

import jax.numpy as jnp
import pytest

from rope_jax.errors import UserError
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers
from rope_jax.rope.strategies import PIScaling
from tests.evaluation.toy_model import GEOMETRY, LENGTHS, cheap_nll, never_read, run

# A YaRN whose ramp starts after the last pair and whose temperature is 1: it does nothing.
IDLE = {"type": "yarn", "factor": 4, "beta_fast": 2.4e-2, "beta_slow": 1e-2, "attention_factor": 1}
TWO = {"geometry": RotaryLayers(GEOMETRY, count=2)}
OWN = RotaryLayers(GEOMETRY, 3, (LayerOverride(scaling=PIScaling(factor=2)),))


@pytest.mark.parametrize(
    ("entry", "settings", "message"),
    [
        *(
            (IDLE | {"factor": factor}, {}, "factor: 4 changes no frequency at train_length 16; ch")
            for factor in (4, "auto")
        ),
        ({"type": "ntk", "factor": 2}, {"geometry": RotaryGeometry(2, 100.0, 16)}, "rotary_dim: "),
        ({"type": "yarn", "factor": "auto"}, {"geometry": RotaryGeometry(8, 1.0, 16)}, "base: "),
        (
            {"type": "explicit", "inv_freq": [1, 0.5, 0.1]},
            TWO,
            "inv_freq: 3 numbers for the 4 pairs of rotary_dim 8",
        ),
        (
            {"type": "explicit", "factors": [[1, 1, 1, 1]] * 3},
            TWO,
            "factors: 3 entries for 2 layers",
        ),
        (
            {"type": "longrope", "factor": "auto", "short_factor": [1] * 4, "long_factor": [2] * 5},
            TWO,
            "long_factor: 5 numbers for the 4 pairs of rotary_dim 8",
        ),
        (
            {"type": "p_rope", "p": 0.5},
            {"geometry": RotaryLayers(GEOMETRY, 3, head_dim=16)},
            "works on whole heads; rotary_dim 8 is not head_dim 16",
        ),
    ],
)
def test_an_entry_that_does_not_fit_the_model_is_refused_before_any_work(entry, settings, message):
    with pytest.raises(UserError, match=r"^scalings: x: ") as caught:
        run(["trained", entry | {"name": "x"}], nll=never_read, **settings)
    assert message in str(caught.value)


def test_an_entry_that_no_layer_would_use_is_refused():
    with pytest.raises(UserError, match=r"^scalings: ntk-4 changes nothing: every layer of this"):
        run(["trained", {"type": "ntk", "factor": 4}], nll=never_read, geometry=OWN)
    assert run(["trained"], nll=cheap_nll, geometry=OWN).measurements


@pytest.mark.parametrize(
    ("entry", "lengths"),
    [
        ({**IDLE, "attention_factor": 1.1}, LENGTHS),  # the temperature is a change
        ({**IDLE, "beta_fast": 9e-2}, LENGTHS),  # so is the last pair's frequency
        ({**IDLE, "factor": 1}, LENGTHS),  # nothing was promised
        ({**IDLE, "factor": "auto"}, [8, 16]),
        ("none", LENGTHS),
    ],
)
def test_a_scaling_that_changes_something_or_need_not_is_accepted(entry, lengths):
    assert len(run([entry], lengths, nll=cheap_nll).measurements) == len(lengths)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scalings": ["yran"]}, "sweep: scalings.0.type: 'yran' is not one of"),
        ({"lengths": [64, 8]}, "sweep: lengths: [64, 8] must be ascending, without repeats"),
        ({"memory_gb": 3}, "sweep: memory_gb: unknown key; did you mean memory_gib?"),
        ({"stride": 9}, "sweep: stride: 9 is more than the shortest length, 8: tokens between"),
        (
            {"lengths": None, "window": 16, "stride": 9, "protocols": ["sliding"]},
            "stride: 9 is more than the shortest length, 8",
        ),
        ({"targets": 5}, "sweep: lengths: 8 is too short for 5 scored targets"),
        ({"lengths": None, "window": 4, "targets": 2}, "lengths: 2 is too short for 2 scored"),
        ({"bos_id": None}, "bos: there is no document-start token; give bos_id, or bos: none"),
        (
            {"lengths": [8, 400]},
            "lengths: none of the 22 documents has the 401 tokens that length 400 needs; "
            "the longest possible length is 331",
        ),
    ],
)
def test_bad_input_is_a_user_error(settings, message):
    with pytest.raises(UserError) as caught:
        run(**({"nll": never_read} | settings))
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("factor", ["auto", 4])
def test_layers_may_be_alike_only_in_some_entries_or_at_some_lengths(factor):
    # at 64 "auto" is 4: there, and in this entry, every layer is the same
    own = LayerOverride(scaling=PIScaling(factor=4))
    layers = RotaryLayers(GEOMETRY, 2, (own, LayerOverride()))
    result = run([{"type": "pi", "factor": factor}], geometry=layers, nll=cheap_nll)
    assert len(result.measurements) == len(LENGTHS)
    assert result.baseline is not None


def test_no_document_start_token_is_needed_where_none_is_asked_for():
    assert run(bos="none", bos_id=None, nll=cheap_nll).documents == 20


@pytest.mark.parametrize(
    "wrong",
    [
        lambda nll: nll[:, 1:],
        lambda nll: nll.mean(),
        lambda nll: nll.astype(jnp.bfloat16),
    ],
)
def test_an_nll_fn_with_a_wrong_shape_or_dtype_is_refused(wrong):
    with pytest.raises(UserError, match=r"^nll_fn: returned .* it must return float32 \[\d+, 64\]"):
        run(nll=lambda *args: wrong(cheap_nll(*args)))
