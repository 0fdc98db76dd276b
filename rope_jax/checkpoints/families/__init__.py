"""The model families of transformers, by `model_type`: one table entry each."""

from dataclasses import replace

from rope_jax.checkpoints.families import deepseek, gemma, qwen
from rope_jax.checkpoints.families.base import REQUIRED, Family
from rope_jax.checkpoints.families.deepseek import DEEPSEEK, GLM
from rope_jax.checkpoints.families.ernie import ERNIE
from rope_jax.checkpoints.families.exaone import EXAONE
from rope_jax.checkpoints.families.gemma import GEMMA
from rope_jax.checkpoints.families.gpt_oss import GPT_OSS
from rope_jax.checkpoints.families.granite import GRANITE
from rope_jax.checkpoints.families.llama import HUNYUAN, LIKE_LLAMA, LLAMA
from rope_jax.checkpoints.families.mistral import MISTRAL
from rope_jax.checkpoints.families.neox import COHERE, NEOX, PHI
from rope_jax.checkpoints.families.olmo import OLMO
from rope_jax.checkpoints.families.qwen import QWEN, QWEN_HYBRIDS
from rope_jax.checkpoints.keys import DEFAULTS

__all__ = ["FAMILIES", "READ_AS", "REQUIRED", "Family"]

_LINEAGES = (
    *(LLAMA, MISTRAL, QWEN, PHI, GEMMA, OLMO, GRANITE, GLM, LIKE_LLAMA, ERNIE, EXAONE, DEEPSEEK),
    *(COHERE, NEOX, GPT_OSS, HUNYUAN, QWEN_HYBRIDS),
)


def _with_defaults(family: Family) -> Family:
    theirs = DEFAULTS[family.model_type]
    keys = tuple(key.with_default(theirs) for key in family.keys)
    windows = family.windows._replace(default=theirs.get(family.windows.key))
    return replace(family, keys=keys, windows=windows)


FAMILIES = {
    family.model_type: _with_defaults(family) for lineage in _LINEAGES for family in lineage
}
"""By model_type, in the order in which an export tries them."""
_READ_AS = deepseek.READ_AS | gemma.READ_AS | qwen.READ_AS
READ_AS = {model_type: _with_defaults(family) for model_type, family in _READ_AS.items()}
"""Families of model types whose code, for texts, is that of another: by these, an export's too."""
