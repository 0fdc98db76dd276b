"""Sweeps with position maps, and of models that end at a length.

Shapes: B batch, n context length; pairs: d/2 of the rotary dimension d. L is the window, 16.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import TypeAdapter

from rope_jax.config.sections import Trained
from rope_jax.config.sweep import SweepConfig
from rope_jax.errors import UserError
from rope_jax.evaluation.entries import check_entries
from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.maps import AnyMap, relative_positions
from rope_jax.protocols import PROTOCOLS
from rope_jax.protocols.windows import make_streams
from rope_jax.rope import LayerOverride, RotaryLayers, parse_scaling
from rope_jax.rope.strategies import NoScaling
from tests.evaluation.toy_model import (
    BOS,
    DOCUMENTS,
    GEOMETRY,
    LENGTHS,
    PARAMS,
    cheap_nll,
    figures,
    of_last,
    run,
)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

parse = TypeAdapter(AnyMap).validate_python
LEAKY = {"type": "leaky_rerope", "window": 8, "k": 40.0}
SINKS = {"type": "streaming", "sinks": 2, "recent": 9}
WEIGHTS = PARAMS["cos"]
# `mapped_nll` takes a second to compile at each length
SHORT = [8, 16, 24]


def mapped_nll(params, tokens, rotary):
    """Target + Σ_j Σ_i w_i·cos(θ_i·r(t, j))·token_j/100 over the keys j that position t sees."""
    place = jnp.arange(tokens.shape[1] - 1)
    total = jnp.float32(0)
    for turn, keys in zip(rotations(rotary, place[None]), band_masks(rotary), strict=True):
        one = jax.tree.map(lambda leaf: leaf[0], turn)  # the one layer's: [B|1, n, 1, pairs]
        pairs = [(one.query_cos, one.key_cos), (one.query_sin, one.key_sin)]
        scores = sum(jnp.einsum("btnp,bsnp,p->bts", q, k, params["cos"]) for q, k in pairs)
        seen = keys.by_distance(place[:, None] - place[None]) & keys.by_document_position(
            place, place
        )
        total = total + jnp.where(seen[None], scores, 0)
    context = tokens[:, :-1].astype(jnp.float32) / 100
    return (total * context[:, None]).sum(-1) + tokens[:, 1:].astype(jnp.float32)


def cheap_mapped_nll(params, tokens, rotary):
    """Return an NLL that depends on every number of a map and its bands, but compiles fast."""
    nll = cheap_nll(params, tokens, rotary)
    own = jnp.arange(tokens.shape[1] - 1, dtype=jnp.int32)[None, None]
    for number, band in enumerate(rotary.bands, start=1):
        places = [own if x is None else x for x in (band.query_positions, band.key_positions)]
        by_place = (places[0] - places[1] // 2)[0].astype(jnp.float32)
        frequencies = (band.frequencies.inv_freq[0] * (1 + jnp.arange(4.0)[None])).sum(-1)
        m = band.frequencies.attention_factor[0]
        weight = number + 0.01 * (band.mask.beyond or 1)
        nll = nll + weight * by_place * (frequencies * m)[:, None]
    return nll


def mapped_reference(window, map_):
    """Compute the same for one window of n + 1 tokens from r(i, j), in float64."""
    place = np.arange(len(window) - 1)
    r = (place[:, None] - place[None]).astype(float)
    r[r < 0] = np.nan
    if map_ is not None:
        r = relative_positions(map_.bands(16, place.size), place, place)
    scores = np.nan_to_num(np.cos(r[..., None] * GEOMETRY.inv_freq()), nan=0.0) @ WEIGHTS
    scores[np.isnan(r)] = 0
    return scores @ window[:-1] / 100 + window[1:]


def sweep_maps(entries, lengths=LENGTHS, **settings):
    settings = {"nll": mapped_nll, "takes_maps": True} | settings
    return run(entries, lengths, **settings)


def expected_nll(protocol, length, map_, lengths=LENGTHS):
    """Return Σ NLL by document, computed one window at a time."""
    streams = make_streams(
        DOCUMENTS, longest=lengths[-1], max_documents=64, bos="document", bos_id=BOS, seed=0
    )
    settings = {"targets": lengths[0] // 2, "max_blocks": 2, "stride": 5, "seed": 0}
    nll = np.zeros(len(streams.tokens))
    windows = PROTOCOLS[protocol](streams, lengths=lengths, **settings).windows(length)
    for index, start, first, _ in zip(*windows[:4], strict=True):
        window = streams.tokens[index][start : start + length + 1].astype(np.int64)
        nll[index] += mapped_reference(window, map_)[first - 1 :].sum()
    return nll


def test_every_measurement_with_a_map_is_what_numpy_computes():
    entries = [
        "trained",
        {"type": "none", "map": LEAKY},
        {"type": "none", "map": {"type": "leaky_rerope"}, "name": "auto"},
        {"type": "none", "map": SINKS},
    ]
    protocols = ["same_tokens", "sliding"]
    result = sweep_maps(entries, SHORT, protocols=protocols, stride=5)
    auto = parse({"type": "leaky_rerope"})
    at = {
        "trained": lambda n: None,
        "leaky_rerope": lambda n: parse(LEAKY),
        "auto": lambda n: auto.at(16, n),
        "streaming": lambda n: parse(SINKS),
    }
    for m in result.measurements:
        assert m.map == at[m.entry](m.length)
        wanted = expected_nll(m.protocol, m.length, m.map, SHORT)
        np.testing.assert_allclose(m.sums.nll, wanted, rtol=3e-6)


def test_auto_is_no_map_up_to_the_window_and_shares_its_reading():
    read = []

    def nll(params, tokens, rotary):
        jax.debug.callback(lambda: read.append(tokens.shape))
        return mapped_nll(params, tokens, rotary)

    entries = ["none", {"type": "none", "map": {"type": "rerope"}, "name": "auto"}]
    found = figures(sweep_maps(entries, SHORT, nll=nll, memory_gib=1.0))
    jax.effects_barrier()
    for length in SHORT:
        plain, auto = (found[name, "same_tokens", length].sums.nll for name in ("none", "auto"))
        assert np.array_equal(plain, auto) == (length <= 16)
    # one batch for `none` at every length, and one for the map beyond the window
    assert sorted(length - 1 for _, length in read) == [8, 16, 24, 24]
    # in it are the windows of one entry only
    assert len({size for size, _ in read}) == 1


def test_two_maps_at_one_length_have_two_programs_and_settings_of_one_may_share_it():
    leaky = [{"type": "none", "map": LEAKY | {"k": k}, "name": f"k{k:g}"} for k in (10.0, 20.0)]
    for more, programs in (
        ([], 2),
        ([{"type": "none", "map": SINKS}], 3),
        # another w hides other keys
        ([{"type": "none", "map": LEAKY | {"window": 9}, "name": "wider"}], 3),
    ):
        entries = ["trained", *leaky, *more]
        result = sweep_maps(entries, [16, 64], nll=cheap_mapped_nll, memory_gib=1.0)
        assert result.compilations == 2 * programs


@pytest.mark.parametrize("tokens", [8, 200])  # one reading at a time, and several in a batch
def test_an_interrupted_sweep_with_maps_resumes_with_the_same_results(tokens):
    entries = ["trained", {"type": "none", "map": LEAKY}, {"type": "none", "map": SINKS}]
    settings = {
        "protocols": ["same_tokens", "per_position"],
        "memory_gib": tokens * 2**14 / 2**30,
        "nll": cheap_mapped_nll,
        "nll_of_last": of_last(cheap_mapped_nll),
    }
    whole = sweep_maps(entries, **settings)

    class Interrupting(dict):
        def __setitem__(self, key, value):
            if len(self) == 8:
                raise KeyboardInterrupt
            super().__setitem__(key, value)

    journal = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        sweep_maps(entries, journal=journal, **settings)
    kept, resumed = dict(journal), []
    result = sweep_maps(
        entries, journal=kept, resuming=lambda *counts: resumed.append(counts), **settings
    )
    assert resumed == [(8, len(whole.measurements))]
    for a, b in zip(whole.measurements, result.measurements, strict=True):
        np.testing.assert_array_equal(a.sums[:2], b.sums[:2])
        assert (a.entry, a.length, a.map) == (b.entry, b.length, b.map)


def test_measurements_with_another_map_are_not_reused():
    journal = {}
    settings = {"nll": cheap_mapped_nll, "lengths": [16, 64]}
    sweep_maps([{"type": "none", "map": LEAKY, "name": "x"}], journal=journal, **settings)
    before = len(journal)
    for map_ in ({**LEAKY, "k": 41.0}, {**LEAKY, "window": 9}, {"type": "rerope", "window": 8}):
        entry = {"type": "none", "map": map_, "name": "x"}
        found = sweep_maps([entry], journal=journal, **settings)
        fresh = sweep_maps([entry], **settings)
        for a, b in zip(found.measurements, fresh.measurements, strict=True):
            np.testing.assert_array_equal(a.sums[:2], b.sums[:2])
    assert len(journal) == before + 3 * 2


def test_prefixes_are_read_with_fixed_maps_only():
    read = []

    def nll(params, tokens, rotary):
        jax.debug.callback(lambda: read.append(tokens.shape[1] - 1))
        return cheap_mapped_nll(params, tokens, rotary)

    entries = [
        {"type": "none", "map": LEAKY},
        {"type": "none", "map": {"type": "leaky_rerope"}, "name": "auto"},
        # m depends on the length
        {"type": "none", "map": {"type": "dual_chunk", "chunk": 12, "local": 4}},
    ]
    settings = {"protocols": ["per_position"], "memory_gib": 1.0}
    sweep_maps(entries, SHORT, nll=nll, **settings)
    jax.effects_barrier()
    # all three at 24; below, the others
    assert sorted(read) == [8, 8, 16, 16, 24, 24, 24]
    # one program of length 24 gives what separate windows of each length do
    result = sweep_maps(entries[:1], SHORT, **settings)
    assert result.compilations == 1
    for m in result.measurements:
        direct = expected_nll("per_position", m.length, parse(LEAKY), SHORT)
        np.testing.assert_allclose(m.sums.nll, direct, rtol=3e-6)


def test_trained_keeps_the_map_of_the_checkpoint_and_others_do_not():
    own = parse(LEAKY)
    entries = ["trained", "none", {"type": "trained", "map": SINKS, "name": "other"}]
    with_map = sweep_maps(entries, SHORT, trained_map=own, nll=cheap_mapped_nll)
    given = [{"type": "none", "map": LEAKY}, "none", {"type": "none", "map": SINKS}]
    without = sweep_maps(given, SHORT, nll=cheap_mapped_nll)
    maps = {"trained": own, "none": None, "other": parse(SINKS)}
    for m, same in zip(with_map.measurements, without.measurements, strict=True):
        assert m.map == maps[m.entry] == same.map
        np.testing.assert_array_equal(m.sums.nll, same.sums.nll)
    # whatever the map was trained at, it is not checked against the window
    beyond = parse({"type": "rerope", "window": 20})
    assert sweep_maps(["trained"], trained_map=beyond, nll=cheap_mapped_nll)


def test_longest_leaves_lengths_out_but_keeps_documents_and_targets():
    settings = {"protocols": ["same_tokens", "per_position", "sliding"], "stride": 5}
    settings["nll"] = cheap_mapped_nll
    whole = figures(sweep_maps(["trained"], **settings))
    result = sweep_maps(["trained"], longest=30, **settings)
    found = figures(result)
    assert {length for _, _, length in found} == {8, 16, 24}
    assert (result.documents, result.longest) == (21, 64)
    for key, measured in found.items():
        assert measured.targets == whole[key].targets
        np.testing.assert_allclose(measured.sums.nll, whole[key].sums.nll, rtol=3e-6)
        np.testing.assert_array_equal(measured.sums.weight, whole[key].sums.weight)
    assert result.baseline is not None
    # beyond what the model can read, not even the window is measured
    assert sweep_maps(["trained"], longest=10, nll=cheap_mapped_nll).baseline is None


def test_layers_may_differ_only_in_the_far_frequencies():
    """A map's scaling may give each layer frequencies of its own, where no other entry does."""
    layers = RotaryLayers(GEOMETRY, 2)
    theta = GEOMETRY.inv_freq()
    far = {"type": "explicit", "inv_freq": [(theta / 4).tolist(), (theta / 8).tolist()]}
    entries = ["trained", {"type": "none", "map": {"type": "far_frequencies", "far": far}}]
    shapes = {}

    def nll(params, tokens, rotary):
        shapes[len(rotary.bands), tokens.shape[1] - 1] = {
            leaf.shape[0] for leaf in jax.tree.leaves(rotary)
        }
        near = cheap_nll(params, tokens, rotary._replace(bands=()))
        if not rotary.bands:
            return near
        slowest = rotary.bands[1].frequencies.inv_freq[:, :, -1]  # [2, B|1]
        return near + 1000 * (slowest[0] - 2 * slowest[1])[:, None]

    found = figures(sweep_maps(entries, [8, 64], nll=nll, geometry=layers))
    # the window, 16, lies between; up to it, auto is no map
    assert shapes == {(0, 8): {2}, (0, 16): {2}, (0, 64): {2}, (2, 64): {2}}
    # θ/4 − 2·θ/8 = 0: each layer's own frequencies arrived
    mapped, plain = (
        found[name, "same_tokens", 64].sums.nll for name in ("far_frequencies", "trained")
    )
    np.testing.assert_allclose(mapped, plain, rtol=1e-6)


# Refusals


def refusal(entries, lengths=LENGTHS, **settings):
    def nll(params, tokens, rotary):
        raise AssertionError("traced")

    with pytest.raises(UserError) as caught:
        sweep_maps(entries, lengths, nll=nll, **settings)
    return str(caught.value)


def test_a_model_that_does_not_read_maps_refuses_them():
    entry = {"type": "none", "map": LEAKY}
    says = refusal(["trained", entry], takes_maps=False)
    assert says == "scalings: leaky_rerope: map: this model cannot read with a position map"
    says = refusal(["trained"], takes_maps=False, trained_map=parse(LEAKY))
    assert says == "scalings: trained: map: this model cannot read with a position map"


def test_a_map_that_leaves_the_window_is_refused_with_the_defaults_that_do_not():
    says = refusal([{"type": "none", "map": LEAKY | {"window": 8, "k": 4.0}, "name": "x"}])
    assert says == (
        "scalings: x: map.window, k: 8, 4 put the first of 64 tokens at distance 21.75, outside "
        "the window of 16 tokens; the defaults, window 12, k 17, would do"
    )


def test_a_scaling_makes_the_known_window_longer():
    map_ = {"type": "rerope", "window": 50}
    assert sweep_maps([{"type": "pi", "factor": 4, "map": map_}], nll=cheap_nll)
    assert sweep_maps([{"type": "pi", "factor": "auto", "map": map_}], nll=cheap_nll)
    says = refusal([{"type": "pi", "factor": 2, "map": map_}])
    assert (
        "map.window: 50 put the first of 64 tokens at distance 50, outside the window of 32" in says
    )


@pytest.mark.parametrize(("window", "length"), [(49, 54), (49, 55)])
def test_a_factor_of_length_by_window_makes_every_length_known(window, length):
    assert length / window * window < length
    map_ = {"type": "rerope", "window": length - 1}
    entry = {"type": "pi", "factor": "auto", "map": map_}
    config = SweepConfig.model_validate({"scalings": [entry], "lengths": [length]})
    trained = Trained(window, NoScaling(), None)
    check_entries(config, RotaryLayers(GEOMETRY), trained, length)


@pytest.mark.parametrize(
    ("entry", "lengths", "says"),
    [
        (
            {"map": {"type": "rerope", "window": 24}},
            [8, 16],
            "map.type: rerope with these settings changes nothing in a text of 16 tokens",
        ),
        (
            {"map": {"type": "rerope", "window": 24}},
            [8, 16, 24],
            "map.window: 24 put the first of 24 tokens at distance 23, outside the window of 16 "
            "tokens; the defaults, window 12, would do",
        ),
        (
            {"map": {"type": "dual_chunk", "local": 100}},
            LENGTHS,
            "map.local: 100 leaves no chunk of 12; give at most 11 (at a trained window of 16)",
        ),
        (
            {"map": {"type": "far_frequencies", "far": {"type": "explicit", "inv_freq": [1.0]}}},
            LENGTHS,
            "map.far.inv_freq: 1 numbers for the 4 pairs of rotary_dim 8",
        ),
    ],
)
def test_a_map_without_effect_or_that_does_not_fit_is_refused(entry, lengths, says):
    found = refusal([{"type": "none", "name": "x"} | entry], lengths)
    assert found == f"scalings: x: {says}"


def test_maps_beside_layers_that_all_have_their_own_scaling():
    own = (LayerOverride(scaling=parse_scaling({"type": "pi", "factor": 2})),)
    layers = RotaryLayers(GEOMETRY, 1, own)
    says = refusal([{"type": "none", "map": LEAKY}], geometry=layers)
    assert says.endswith("has a scaling of its own; give type: trained beside the map")
    far = {"type": "far_frequencies", "far": {"type": "pi", "factor": 8.0}}
    says = refusal([{"type": "trained", "map": far, "name": "x"}], geometry=layers)
    assert says == (
        "scalings: x: map.far: changes nothing: every layer of this model has a scaling of its own"
    )
    assert sweep_maps(
        [{"type": "trained", "map": LEAKY, "name": "x"}], geometry=layers, nll=cheap_nll
    )
