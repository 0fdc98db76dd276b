"""The decoder computes the logits of transformers, for every family and rope type.

The golden logits are those of transformers on torch, in float32, with the same weights:
`scripts/golden_checkpoints.py`.
"""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rope_jax.checkpoints.families import FAMILIES as SUPPORTED
from rope_jax.checkpoints.reading import read_description, text_part
from rope_jax.config.entries import AnyEntry
from rope_jax.config.resolve import language_model, resolve_run
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation import sweep
from rope_jax.evaluation.decoder import nll_of_last
from tests.checkpoints.cases import FAMILIES, read_cases
from tests.checkpoints.folders import (
    EACH_FAMILY,
    config_of,
    golden_case,
    loaded,
    logit_differences,
    write_case,
)

# torch in float32 differs from float64 by up to 2.4e-5
TOLERANCE = 2e-4
# scripts/golden_checkpoints.py --sliding, with transformers 5.23, on these 65 tokens
NATS_ON_TORCH = {"llama": 5.830489, "qwen2": 6.062128}


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Inside and past the window, LongRoPE at L and L + 1, partial rotation at long distances."""
    for case, length, worst in logit_differences(family, tmp_path):
        assert worst < TOLERANCE, (case, length, worst)


@pytest.mark.parametrize("family", FAMILIES)
def test_configs_of_version_4_are_read_alike(family: str) -> None:
    for case in read_cases(family):
        new, old = json.loads(case.config), json.loads(case.old_config)
        given = ["rope_parameters" in text_part(form) for form in (new, old)]
        is_newer = family == "gemma4_text"  # the older form is one of version 5
        assert given == [True, is_newer], case.name
        a, b = (config_of(read_description(form, "config.json")) for form in (new, old))
        assert (a.model, a.rope) == (b.model, b.rope), case.name


@pytest.mark.parametrize("family", NATS_ON_TORCH)
def test_sliding_windows_agree_with_torch(family: str, tmp_path: Path) -> None:
    """Windows of 16 tokens, which advance by 8; the models were trained with YaRN."""
    case = golden_case(family, "yarn")
    config, params = loaded(write_case(tmp_path, case))
    tokens = next(text.tokens for text in case.texts if len(text.tokens) == 80)[:65]
    of_last = nll_of_last(language_model(resolve_run(config), 64), Placement(config.mesh))
    result = sweep(
        lambda params, tokens, rotary: of_last(params, tokens, rotary, 16),
        TypeAdapter(tuple[AnyEntry, ...]).validate_python(["trained"]),
        [16],
        [tokens] * 20,  # of fewer documents, only every second part would be read
        params=params,
        geometry=config.rotary_layers,
        trained=config.rope.scaling,
        window=16,
        nll_of_last=of_last,
        protocols=("sliding",),
        stride=8,
        max_blocks=4,
        bos="none",
    )
    (measured,) = result.measurements
    assert measured.tokens == 20 * 64
    assert measured.sums.mean() == pytest.approx(NATS_ON_TORCH[family], abs=1e-5)


def test_every_family_has_a_file_a_row_in_the_documentation_and_texts_past_its_window() -> None:
    assert set(FAMILIES) == set(SUPPORTED)
    documented = (Path(__file__).parents[2] / "docs/families.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in documented] == list(SUPPORTED)
    for family in FAMILIES:
        for case in read_cases(family):
            assert max(len(text.tokens) for text in case.texts) >= 80, case.name
            assert all(text.places[-1] == len(text.tokens) - 1 for text in case.texts), case.name
