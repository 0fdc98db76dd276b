"""The protocol `sliding` on a checkpoint, and the usual recipe on torch."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rope_jax.config.entries import AnyEntry
from rope_jax.devices.mesh import Placement
from rope_jax.evaluation import sweep
from rope_jax.evaluation.decoder import nll_of_last
from rope_jax.model.decoder import language_model
from rope_jax.model.resolve import resolve_run
from tests.checkpoints.folders import golden_case, loaded, write_case

# scripts/golden_checkpoints.py --sliding, with transformers 5.23, on these 65 tokens
NATS_ON_TORCH = {"llama": 5.830489, "qwen2": 6.062128}


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
