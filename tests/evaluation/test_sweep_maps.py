"""Sweeps with position maps, and of models that end at a length.

Shapes: B batch, n context length; pairs: d/2 of the rotary dimension d. L is the window, 16.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rope_jax.positions.bands import band_masks, rotations
from rope_jax.positions.maps import relative_positions
from tests.evaluation.toy_model import (
    GEOMETRY,
    LEAKY,
    PARAMS,
    SINKS,
    cheap_nll,
    figures,
    parse_map,
    run,
    windows_of,
)

MAPPED = {"type": "none", "map": LEAKY}
AUTO = {"type": "none", "map": {"type": "leaky_rerope"}, "name": "auto"}
WEIGHTS = PARAMS["cos"]
# `mapped_nll` takes a second to compile at each length
SHORT = [16, 24]


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


def mapped_reference(tokens, map_):
    """Compute the same for windows [W, n + 1] from r(i, j), in float64."""
    place = np.arange(tokens.shape[1] - 1)
    r = (place[:, None] - place[None]).astype(float)
    r[r < 0] = np.nan
    if map_ is not None:
        r = relative_positions(map_.bands(16, place.size), place, place)
    scores = np.nan_to_num(np.cos(r[..., None] * GEOMETRY.inv_freq()), nan=0.0) @ WEIGHTS
    scores[np.isnan(r)] = 0
    return tokens[:, :-1] @ scores.T / 100 + tokens[:, 1:]


def read_rows(entries, **settings):
    """Return the results, and {(number of bands, length): how many windows one program read}."""
    rows = {}

    def nll(params, tokens, rotary):
        rows[len(rotary.bands), tokens.shape[1] - 1] = len(tokens)
        return cheap_nll(params, tokens, rotary)

    return run(entries, SHORT, nll=nll, memory_gib=1.0, **settings), rows


def test_every_measurement_with_a_map_is_what_numpy_computes():
    entries = ["trained", MAPPED, AUTO, {"type": "none", "map": SINKS}]
    protocols = ["same_tokens", "sliding", "per_position"]
    result = run(entries, SHORT, nll=mapped_nll, protocols=protocols, stride=5)
    at = {
        "trained": lambda n: None,
        "leaky_rerope": lambda n: parse_map(LEAKY),
        "auto": lambda n: parse_map(AUTO["map"]).at(16, n),
        "streaming": lambda n: parse_map(SINKS),
    }
    for m in result.measurements:
        assert m.map == at[m.entry](m.length)
        document, tokens, scored = windows_of(m.protocol, m.length, tuple(SHORT))
        wanted = np.where(scored, mapped_reference(tokens, m.map), 0).sum(1)
        np.testing.assert_allclose(m.sums.nll, np.bincount(document, wanted), rtol=3e-6)


def test_auto_is_no_map_up_to_the_window_and_shares_its_reading():
    result, rows = read_rows(["none", AUTO])
    found = figures(result)
    for length in SHORT:
        plain, auto = (found[name, "same_tokens", length].sums.nll for name in ("none", "auto"))
        assert np.array_equal(plain, auto) == (length <= 16)
    # one reading of `none` at every length, and one of the map beyond the window
    assert rows.keys() == {(0, 16), (0, 24), (2, 24)}
    assert len(set(rows.values())) == 1


def test_prefixes_are_read_with_fixed_maps_only():
    # m of dual_chunk depends on the length
    chunks = {"type": "none", "map": {"type": "dual_chunk", "chunk": 12, "local": 4}}
    for entry, lengths in ((MAPPED, {24}), (AUTO, {16, 24}), (chunks, {16, 24})):
        _, rows = read_rows([entry], protocols=["per_position"])
        assert {length for _, length in rows} == lengths


def test_trained_keeps_the_map_of_the_checkpoint_and_others_do_not():
    own = parse_map(LEAKY)
    entries = ["trained", "none", {"type": "trained", "map": SINKS, "name": "other"}]
    with_map = run(entries, SHORT, trained_map=own)
    given = [{"type": "none", "map": LEAKY}, "none", {"type": "none", "map": SINKS}]
    without = run(given, SHORT)
    maps = {"trained": own, "none": None, "other": parse_map(SINKS)}
    for m, same in zip(with_map.measurements, without.measurements, strict=True):
        assert m.map == maps[m.entry] == same.map
        np.testing.assert_array_equal(m.sums.nll, same.sums.nll)
    # whatever the map was trained at, it is not checked against the window
    beyond = parse_map({"type": "rerope", "window": 20})
    assert run(["trained"], trained_map=beyond)


def test_longest_leaves_lengths_out_but_keeps_documents_and_targets():
    settings = {"protocols": ["same_tokens", "per_position", "sliding"], "stride": 5}
    whole = figures(run(["trained"], **settings))
    result = run(["trained"], longest=30, **settings)
    found = figures(result)
    assert {length for _, _, length in found} == {8, 16, 24}
    assert (result.documents, result.longest) == (21, 64)
    for key, measured in found.items():
        assert measured.targets == whole[key].targets
        np.testing.assert_allclose(measured.sums.nll, whole[key].sums.nll, rtol=3e-6)
        np.testing.assert_array_equal(measured.sums.weight, whole[key].sums.weight)
    assert result.baseline is not None
    # beyond what the model can read, not even the window is measured
    assert run(["trained"], longest=10).baseline is None
