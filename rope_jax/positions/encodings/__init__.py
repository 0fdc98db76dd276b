"""Position encodings: what tells a model the order of its tokens. Imports no jax.

To add one, write a file here with a subclass of `Encoding` and list it below.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from rope_jax.positions.encodings.base import OWN_BACKENDS, Encoding, Sizes
from rope_jax.positions.encodings.rope import NoEncoding, RoPE

__all__ = ["ENCODINGS", "OWN_BACKENDS", "AnyEncoding", "Encoding", "RoPE", "Sizes"]

_ALL: tuple[type[Encoding], ...] = (RoPE, NoEncoding)
ENCODINGS = {encoding.model_fields["type"].default: encoding for encoding in _ALL}

# The type of a config field that holds an encoding: the union of all, discriminated by `type`.
if TYPE_CHECKING:
    AnyEncoding = Encoding
else:
    AnyEncoding = Annotated[Union[*ENCODINGS.values()], Field(discriminator="type")]
