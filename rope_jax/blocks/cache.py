"""What a layer keeps of the tokens that it has read, for those that follow.

Shapes: B batch, C capacity in tokens, T tokens that are read, K key-value heads, R head dim of
rotated keys, V that of values.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int

from rope_jax.attention.delta import DeltaState
from rope_jax.attention.linear import Running


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of up to C tokens.

    The keys are rotated, once for each band of a position map: a text is read as a window of n
    tokens, with n fixed, so what a token's key is does not change when others follow. Those of a
    scaling that follows the length would, and so would all that later layers made of them.

    keys:   of each band.
    values: None: the last V numbers of each key, as in latent attention.
    """

    keys: tuple[Float[Array, "B C K R"], ...]
    values: Float[Array, "B C K V"] | None

    def with_tokens(
        self,
        keys: tuple[Float[Array, "B T K R"], ...],
        values: Float[Array, "B T K V"],
        first: Int[Array, ""],
    ) -> "KeyValueCache":
        """Return the cache with the keys and values of the tokens from `first` on."""

        def put(cached: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(cached, new.astype(cached.dtype), first, 1)

        kept = None if self.values is None else put(self.values, values)
        return KeyValueCache(tuple(map(put, self.keys, keys)), kept)

    def values_of(self, width: int) -> Float[Array, "B C K {width}"]:
        return self.keys[0][..., -width:] if self.values is None else self.values


#: What linear attention and the delta rule keep is as large for any number of tokens.
Cache = KeyValueCache | Running | DeltaState
