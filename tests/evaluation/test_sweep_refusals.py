"""What a sweep refuses before any work, and what it accepts."""

import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.config.entries import Trained, parse_entries
from rope_jax.errors import UserError
from rope_jax.evaluation.plan import check_entries
from rope_jax.rope import LayerOverride, RotaryGeometry, RotaryLayers, parse_scaling
from rope_jax.rope.strategies import NoScaling, PIScaling
from tests.evaluation.toy_model import (
    GEOMETRY,
    LEAKY,
    LENGTHS,
    cheap_nll,
    never_read,
    parse_map,
    run,
)

# A YaRN whose ramp starts after the last pair and whose temperature is 1: it does nothing.
IDLE = {"type": "yarn", "factor": 4, "beta_fast": 2.4e-2, "beta_slow": 1e-2, "attention_factor": 1}
NAMED = {"type": "none", "name": "x"}
TWO = {"geometry": RotaryLayers(GEOMETRY, count=2)}
OWN = {"geometry": RotaryLayers(GEOMETRY, 3, (LayerOverride(scaling=PIScaling(factor=2)),))}
EXPLICIT = {"type": "explicit", "inv_freq": [1.0]}
FAR = {"type": "far_frequencies", "far": {"type": "pi", "factor": 8.0}}


@pytest.mark.parametrize(
    ("entry", "settings", "says"),
    [
        (IDLE, {}, "factor: 4 changes no frequency at train_length 16"),
        (IDLE | {"factor": "auto"}, {}, "factor: 4 changes no frequency at train_length 16"),
        ({"type": "ntk", "factor": 2}, {"geometry": RotaryGeometry(2, 100.0, 16)}, "rotary_dim: "),
        ({"type": "yarn", "factor": "auto"}, {"geometry": RotaryGeometry(8, 1.0, 16)}, "base: "),
        (EXPLICIT, TWO, "inv_freq: 1 numbers for the 4 pairs of rotary_dim 8"),
        ({"type": "explicit", "factors": [[1] * 4] * 3}, TWO, "factors: 3 entries for 2 layers"),
        ({"type": "longrope", "factor": "auto", "short_factor": [1] * 4, "long_factor": [2] * 5},
         TWO, "long_factor: 5 numbers for the 4 pairs"),
        ({"type": "p_rope", "p": 0.5}, {"geometry": RotaryLayers(GEOMETRY, 3, head_dim=16)},
         "works on whole heads; rotary_dim 8 is not head_dim 16"),
        ({"type": "ntk", "factor": 4}, OWN, "changes nothing: every layer of this model has a"),
        ({"type": "pi", "factor": 4}, {"trained": parse_scaling("drope")},
         "over: no pair of the trained drope rotates, so pi has no frequency to act on"),
        ({"type": "trained", "factor": 4}, {}, "factor: the model's own scaling, none, has none"),
        ({"type": "evq_cosh", "over": "trained"}, {}, "inner: evq_cosh chooses all frequencies"),
        ({"map": LEAKY}, {"takes_maps": False}, "map: this model cannot read with a position map"),
        ({"map": LEAKY | {"k": 4.0}}, {}, "map.window, k: 8, 4 put the first of 64 tokens at dist"
         "ance 21.75, outside the window of 16 tokens; give others, or auto"),
        ({"type": "pi", "factor": 2, "map": {"type": "rerope", "window": 50}}, {},
         "map.window: 50 put the first of 64 tokens at distance 50, outside the window of 32 "),
        ({"map": {"type": "rerope", "window": 24}}, {"lengths": [8, 16]},
         "map.type: rerope with these settings changes nothing in a text of 16 tokens"),
        ({"map": {"type": "rerope", "window": 24}}, {"lengths": [8, 16, 24]},
         "map.window: 24 put the first of 24 tokens at distance 23, outside the window of 16 "),
        ({"map": {"type": "rerope"}}, {"lengths": [8, 16]},
         "map.type: rerope with auto settings acts beyond the window of 16 tokens, and no length"),
        ({"map": {"type": "dual_chunk", "local": 100}}, {}, "map.local: 100 leaves no chunk of 12"),
        ({"map": FAR | {"far": EXPLICIT}}, {},
         "map.far.inv_freq: 1 numbers for the 4 pairs of rotary_dim 8"),
        ({"type": "trained", "map": FAR}, OWN, "map.far: changes nothing: every layer of this mo"),
        ({"map": LEAKY}, OWN, "scaling of its own; give type: trained beside the map"),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_fit_the_model_is_refused_before_any_work(entry, settings, says):
    with pytest.raises(UserError, match=r"^scalings: x") as caught:
        run(["trained", NAMED | entry], **{"nll": never_read} | settings)
    assert says in str(caught.value)


def test_a_map_of_the_checkpoint_needs_a_model_that_takes_maps():
    with pytest.raises(UserError, match=r"^scalings: trained: map: this model cannot read with a"):
        run(trained_map=parse_map(LEAKY), takes_maps=False, nll=never_read)


@pytest.mark.parametrize(
    ("entry", "settings"),
    [
        (IDLE | {"attention_factor": 1.1}, {}),  # the temperature is a change
        (IDLE | {"beta_fast": 9e-2}, {}),  # so is the last pair's frequency
        (IDLE | {"factor": 1}, {}),  # nothing was promised
        (IDLE | {"factor": "auto"}, {"lengths": [8, 16]}),
        ("none", {}),
        ("trained", OWN),
        ({"type": "trained", "map": LEAKY, "name": "x"}, OWN),
        ("none", {"bos": "none", "bos_id": None}),  # no document-start token is needed
        # layers may be alike only in some entries or at some lengths: at 64 "auto" is 4
        *(
            ({"type": "pi", "factor": factor}, {"geometry": RotaryLayers(
                GEOMETRY, 2, (LayerOverride(scaling=PIScaling(factor=4)), LayerOverride()))})
            for factor in ("auto", 4)
        ),
    ],
)  # fmt: skip
def test_a_scaling_that_changes_something_or_need_not_is_accepted(entry, settings):
    settings = {"lengths": LENGTHS} | settings
    result = run([entry], **settings)
    assert len(result.measurements) == len(settings["lengths"])
    assert result.baseline is not None


@pytest.mark.parametrize(
    ("entry", "window", "length"),
    [
        ({"type": "pi", "factor": 4}, 16, 64),
        ({"type": "pi", "factor": "auto"}, 16, 64),
        # length / window · window is rounded to less than the length
        ({"type": "pi", "factor": "auto"}, 49, 54),
        ({"type": "pi", "factor": "auto"}, 49, 55),
    ],
)
def test_a_scaling_makes_the_known_window_longer(entry, window, length):
    # it puts the first token more than length − 2 tokens away, so all of the length must be known
    entry = entry | {"map": {"type": "leaky_rerope", "window": 10, "k": 1.01}}
    trained = Trained(window, NoScaling(), None, window)
    check_entries(parse_entries(entry), RotaryLayers(GEOMETRY), trained, length)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scalings": ["yran"]}, "sweep: scalings.0.type: 'yran' is not one of"),
        ({"lengths": [64, 8]}, "sweep: lengths: [64, 8] must be ascending, without repeats"),
        ({"memory_gb": 3}, "sweep: memory_gb: unknown key; did you mean memory_gib?"),
        ({"stride": 9}, "sweep: stride: 9 is more than the shortest length, 8: tokens between"),
        ({"lengths": None, "window": 16, "stride": 9, "protocols": ["sliding"]},
         "stride: 9 is more than the shortest length, 8"),
        ({"targets": 5}, "sweep: lengths: 8 is too short for 5 scored targets"),
        ({"lengths": None, "window": 4, "targets": 2}, "lengths: 2 is too short for 2 scored"),
        ({"bos_id": None}, "bos: there is no document-start token; give bos_id, or bos: none"),
        ({"lengths": [8, 400]}, "lengths: none of the 22 documents has the 401 tokens that length "
         "400 needs; the longest possible length is 331"),
        ({"token_bytes": np.ones(89)}, "token_bytes: has no entry for token 89 of the documents"),
    ],
)  # fmt: skip
def test_bad_input_is_a_user_error(settings, message):
    with pytest.raises(UserError) as caught:
        run(**({"nll": never_read} | settings))
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [lambda nll: nll[:, 1:], lambda nll: nll.mean(), lambda nll: nll.astype(jnp.bfloat16)]
)
def test_an_nll_fn_with_a_wrong_shape_or_dtype_is_refused(wrong):
    with pytest.raises(UserError, match=r"^nll_fn: returned .* it must return float32 \[\d+, 64\]"):
        run(nll=lambda *args: wrong(cheap_nll(*args)))
