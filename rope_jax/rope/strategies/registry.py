"""Every strategy that wraps no other, in the order of every list and table. Add new ones here."""

from rope_jax.rope.strategies.base import Scaling
from rope_jax.rope.strategies.by_parts import (
    DynamicYaRNScaling,
    Llama3Scaling,
    NTKByPartsScaling,
    YaRNScaling,
)
from rope_jax.rope.strategies.explicit import ExplicitScaling, LongRoPEScaling
from rope_jax.rope.strategies.ntk import (
    ABFScaling,
    DynamicNTKScaling,
    EVQCoshScaling,
    MixedBaseScaling,
    NTKScaling,
)
from rope_jax.rope.strategies.pi import DynamicPIScaling, NoScaling, PIScaling
from rope_jax.rope.strategies.unrotated import CoPEScaling, DRoPEScaling, PRoPEScaling

PLAIN: tuple[type[Scaling], ...] = (
    NoScaling,
    PIScaling,
    NTKScaling,
    DynamicNTKScaling,
    DynamicPIScaling,
    NTKByPartsScaling,
    YaRNScaling,
    DynamicYaRNScaling,
    LongRoPEScaling,
    Llama3Scaling,
    ABFScaling,
    MixedBaseScaling,
    EVQCoshScaling,
    PRoPEScaling,
    CoPEScaling,
    DRoPEScaling,
    ExplicitScaling,
)
