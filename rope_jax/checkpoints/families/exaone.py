"""EXAONE."""

from typing import Any

from rope_jax.checkpoints.families.base import (
    FUSED,
    OUTSIDE,
    PATTERN,
    Family,
    LocalWindows,
    every,
    like,
    llama_keys,
)
from rope_jax.checkpoints.families.deepseek import DOTS1, LAYER_TYPES, NUM_EXPERTS, choice_bias


def _pattern_of_letters(config: dict[str, Any]) -> dict[str, Any]:
    """EXAONE 4: LLLG, for three local layers before each global one, is 4; 0 is none at all."""
    every = config.get(PATTERN)
    every = len(every) if isinstance(every, str) else every or None
    return config | {PATTERN: every}


EXAONE = (
    Family(
        "exaone",
        llama_keys("attention_bias", "mlp_bias"),
        fused=FUSED["exaone"],
        outside=OUTSIDE["exaone"],
    ),
    Family(
        "exaone4",
        llama_keys(),
        fixed={"norm_placement": "after", "qk_norm": True},
        windows=LocalWindows(is_local=every(4, from_config=True)),
        upgrade=_pattern_of_letters,
    ),
    like(
        DOTS1,
        "exaone_moe",
        LAYER_TYPES,
        without=("attention_bias", "first_k_dense_replace"),
        names=NUM_EXPERTS,
        more_rows=(choice_bias("mlp.e_score_correction_bias"),),
        windows=LocalWindows(is_local=every(4, from_config=True)),
        upgrade=_pattern_of_letters,
    ),
)
