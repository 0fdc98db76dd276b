"""The golden files of tiny models: what the tests of checkpoints rest on."""

import json

import numpy as np
import pytest

from rope_jax.rope.hf import layers_from_hf
from tests.checkpoints.cases import FAMILIES, FOLDER, read_cases
from tests.checkpoints.weights import golden_weight


def test_weights_are_those_that_the_files_were_made_with() -> None:
    """Checks the stream of random numbers, which must not depend on the version of numpy."""
    query = golden_weight("model.layers.0.self_attn.q_proj.weight", (1, 4))
    assert query.tolist() == [
        [0.9060494899749756, -0.2393832951784134, -1.7856277227401733, 0.12364542484283447]
    ]
    norm = golden_weight("model.norm.weight", (3,))
    assert norm.tolist() == [1.0236064195632935, 1.2856498956680298, 0.6525062322616577]
    np.testing.assert_allclose(
        golden_weight("model.norm.weight", (3,), norm_mean=0.0), norm - 1, atol=1e-7
    )
    bias = golden_weight("gpt_neox.layers.1.attention.dense.bias", (3,))
    assert bias.tolist() == [0.40848660469055176, 0.33533111214637756, -0.08967359364032745]


def test_weights_have_the_scale_that_is_stated() -> None:
    for name, scale in (
        ("model.embed_tokens.weight", 2.0),
        ("model.layers.1.self_attn.k_proj.weight", 1.6),
        ("model.layers.1.mlp.down_proj.weight", 1.0),
    ):
        weight = golden_weight(name, (512, 64))
        assert weight.std() * np.sqrt(64) == pytest.approx(scale, rel=0.02)
        assert abs(weight.mean()) < 0.01 * scale


@pytest.mark.parametrize("family", FAMILIES)
def test_both_forms_of_a_config_have_the_same_rope(family: str) -> None:
    """transformers computes the same logits from both; `scripts/golden_checkpoints.py` checks."""
    for case in read_cases(family):
        new, old = json.loads(case.config), json.loads(case.old_config)
        assert "rope_parameters" in new, case.name
        assert "rope_parameters" not in old, case.name
        assert layers_from_hf(new) == layers_from_hf(old), case.name


def test_every_family_has_a_file_and_texts_past_its_window() -> None:
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(FAMILIES)
    for family in FAMILIES:
        for case in read_cases(family):
            vocabulary = json.loads(case.config)["vocab_size"]
            for text in case.texts:
                assert text.logits.shape == (len(text.places), vocabulary), case.name
                assert np.isfinite(text.logits).all(), case.name
                assert text.places[-1] == len(text.tokens) - 1, case.name
                assert text.tokens.max() < vocabulary, case.name
            assert max(len(text.tokens) for text in case.texts) >= 80, case.name
