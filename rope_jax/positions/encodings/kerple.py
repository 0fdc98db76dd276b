"""`kerple`: a trained penalty that grows with the logarithm of the distance."""

from typing import Any, ClassVar, Literal

from rope_jax.positions.encodings.base import Encoding, Params, Scores, Sizes

# The authors' code keeps both parameters at least this large.
_SMALLEST = 1e-2


class KERPLEEncoding(Encoding):
    """KERPLE-log: logits q·k/√H − r1·ln(1 + r2·(i − j)), with trained r1, r2 > 0 per head.

    As in the authors' code (chijames/KERPLE, `ParallelKerpleLog`): at least 0.01 where they are
    used; initially r1 ~ U(0, 2) and r2 ~ U(0, 1); all layers share them. The authors overwrite a
    smaller parameter; here it stays, and can come back.
    """

    source: ClassVar[str] = "Chi et al., arXiv 2205.09921"
    uses_distances: ClassVar[bool] = True
    needs_interaction: ClassVar[bool] = True
    type: Literal["kerple"] = "kerple"

    def parameter_shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        return {"r1": (1, sizes.heads), "r2": (1, sizes.heads)}

    def initial(self, sizes: Sizes, key: Any) -> Params:
        import jax

        r1_key, r2_key = jax.random.split(key)
        shape = (1, sizes.heads)
        return {
            "r1": jax.random.uniform(r1_key, shape, maxval=2.0),
            "r2": jax.random.uniform(r2_key, shape),
        }

    def layer_params(self, parameters: Params, positions: Any, pairs: int) -> Params:
        import jax.numpy as jnp

        from rope_jax.positions.functions import bounded

        r1, r2 = (bounded(parameters[name], _SMALLEST)[..., None] for name in ("r1", "r2"))
        distance = jnp.arange(positions.shape[-1], dtype=jnp.float32)[None, None]
        return {"by_distance": -r1 * jnp.log1p(r2 * distance)}

    @property
    def scores(self) -> Scores:
        from rope_jax.positions.interaction import plus_by_distance

        return plus_by_distance
