"""Every strategy that wraps no other, in the order of every list and table. Add new ones here."""

from rope_jax.rope.strategies.abf import ABFScaling
from rope_jax.rope.strategies.base import Scaling
from rope_jax.rope.strategies.by_parts import DynamicYaRNScaling, NTKByPartsScaling, YaRNScaling
from rope_jax.rope.strategies.cope import CoPEScaling
from rope_jax.rope.strategies.drope import DRoPEScaling
from rope_jax.rope.strategies.evq_cosh import EVQCoshScaling
from rope_jax.rope.strategies.explicit import ExplicitScaling
from rope_jax.rope.strategies.llama3 import Llama3Scaling
from rope_jax.rope.strategies.longrope import LongRoPEScaling
from rope_jax.rope.strategies.mixed_base import MixedBaseScaling
from rope_jax.rope.strategies.none import NoScaling
from rope_jax.rope.strategies.ntk import DynamicNTKScaling, NTKScaling
from rope_jax.rope.strategies.p_rope import PRoPEScaling
from rope_jax.rope.strategies.pi import DynamicPIScaling, PIScaling

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
