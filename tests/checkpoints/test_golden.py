"""The decoder computes the logits of transformers, for every family and rope type.

The golden logits are those of transformers on torch, in float32, with the same weights:
`scripts/golden_checkpoints.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rope_jax.checkpoints.reading import read_description
from tests.checkpoints.cases import FAMILIES, read_cases
from tests.checkpoints.folders import EACH_FAMILY, config_of, loaded, logits_of, write_case

# torch in float32 differs from float64 by up to 2.4e-5
TOLERANCE = 2e-4


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Inside and past the window, LongRoPE at L and L + 1, partial rotation at long distances."""
    for case in read_cases(family):
        config, params = loaded(write_case(tmp_path / case.name, case))
        for text in case.texts:
            found = logits_of(config, params, text.tokens)[text.places]
            worst = np.abs(found - text.logits).max()
            assert worst < TOLERANCE, (case.name, len(text.tokens), worst)


@pytest.mark.parametrize("family", FAMILIES)
def test_configs_of_version_4_are_read_alike(family: str) -> None:
    for case in read_cases(family):
        new, old = (
            config_of(read_description(json.loads(text), "config.json"))
            for text in (case.config, case.old_config)
        )
        assert new.model == old.model, case.name
        assert new.rope == old.rope, case.name
