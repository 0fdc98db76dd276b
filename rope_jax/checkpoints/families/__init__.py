"""The model families of transformers, by `model_type`: one table entry each."""

from rope_jax.checkpoints.families.base import REQUIRED, Family
from rope_jax.checkpoints.families.experts import EXPERTS
from rope_jax.checkpoints.families.latent import LATENT
from rope_jax.checkpoints.families.layer_norm import LAYER_NORM
from rope_jax.checkpoints.families.refused import REFUSED
from rope_jax.checkpoints.families.rms_norm import RMS_NORM

__all__ = ["FAMILIES", "REFUSED", "REQUIRED", "Family"]

FAMILIES = {family.model_type: family for family in (*RMS_NORM, *LAYER_NORM, *EXPERTS, *LATENT)}
"""By model_type, in the order in which an export tries them."""
