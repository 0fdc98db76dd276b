"""Which tokens can be drawn, and how often, against the definitions in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rope_jax.generation.sampling import GREEDY, Sampling

LOGITS = np.array(
    [
        [2.0, 1.0, 1.0, 0.5, -1.0, -3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [9.0, -9.0, 1.0, 2.0, 3.0, 0.0],
    ],
    np.float32,
)


def expected(logits, temperature, top_k=None, top_p=1.0):
    """Return the probabilities of one text's tokens, one token at a time, in float64."""
    logits = logits.astype(np.float64) / temperature
    kept = set(range(len(logits)))
    if top_k is not None:
        kth = sorted(logits)[-min(top_k, len(logits))]
        kept = {token for token in kept if logits[token] >= kth}
    p = {token: np.exp(logits[token]) for token in sorted(kept)}
    p = {token: x / sum(p.values()) for token, x in p.items()}
    if top_p < 1:
        least = [sum(x for x in p.values() if x <= p[token]) for token in p]
        kept = {
            t for t, x in zip(p, least, strict=True) if x > 1 - top_p or p[t] == max(p.values())
        }
    left = sum(p[token] for token in kept)
    return np.array([p[token] / left if token in kept else 0 for token in range(len(logits))])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0},
        {"temperature": 0.5, "top_k": 2},  # two tokens are second
        {"temperature": 1.0, "top_k": 100},
        {"temperature": 2.0, "top_p": 0.7},
        {"temperature": 1.0, "top_p": 0.6},  # six are equal
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.8},
    ],
    ids=str,
)
def test_which_tokens_can_be_drawn_and_how_often(settings):
    filtered = Sampling(**settings).filtered(jnp.asarray(LOGITS))
    probabilities = np.asarray(jax.nn.softmax(filtered))
    wanted = np.stack([expected(row, **settings) for row in LOGITS])
    np.testing.assert_array_equal(probabilities > 0, wanted > 0)
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)


def test_draws_have_these_probabilities_and_differ_by_text_step_and_seed():
    settings = {"temperature": 1.0, "top_k": 4}
    logits, sampling = jnp.tile(LOGITS[0], (500, 1)), Sampling(**settings, seed=3)
    draws = np.stack([sampling.choose(logits, step) for step in range(8)])
    assert len({row.tobytes() for row in [*draws, *draws.T]}) > 400
    found = np.bincount(draws.ravel(), minlength=6) / draws.size
    np.testing.assert_allclose(found, expected(LOGITS[0], **settings), atol=0.03)
    np.testing.assert_array_equal(sampling.choose(logits, 5), draws[5])
    assert (np.asarray(Sampling(**settings, seed=4).choose(logits, 5)) != draws[5]).any()
    assert GREEDY.choose(jnp.asarray(LOGITS), 0).tolist() == [0, 0, 0]
