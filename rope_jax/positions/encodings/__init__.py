"""Position encodings: what tells a model the order of its tokens.

To add one, write a file here with a subclass of `Encoding` and list it below.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from rope_jax.positions.encodings.absolute import LearnedEncoding, SinusoidalEncoding
from rope_jax.positions.encodings.base import Encoding, Sizes
from rope_jax.positions.encodings.biases import ALiBiEncoding, KERPLEEncoding, T5Encoding
from rope_jax.positions.encodings.fire import FIREEncoding
from rope_jax.positions.encodings.rotary import NoEncoding, PoPEEncoding, RoPE, XPosEncoding
from rope_jax.positions.encodings.shaw import ShawEncoding

__all__ = ["ENCODINGS", "AnyEncoding", "Encoding", "RoPE", "Sizes"]

_ALL: tuple[type[Encoding], ...] = (
    RoPE,
    NoEncoding,
    SinusoidalEncoding,
    LearnedEncoding,
    ShawEncoding,
    ALiBiEncoding,
    T5Encoding,
    KERPLEEncoding,
    FIREEncoding,
    XPosEncoding,
    PoPEEncoding,
)
ENCODINGS = {encoding.model_fields["type"].default: encoding for encoding in _ALL}
"""The class of each encoding, by its `type`."""

if TYPE_CHECKING:
    AnyEncoding = Encoding
    """The type of a config field that holds an encoding: the union of all, by `type`."""
else:
    AnyEncoding = Annotated[Union[*ENCODINGS.values()], Field(discriminator="type")]
