"""The scaling strategies, by `type`. To add one, write a file here and list it in registry.py."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from rope_jax.rope.strategies.base import Scaling, first_error
from rope_jax.rope.strategies.bucketed import BucketedScaling

# Export every class, so that a new one needs to be named only in the registry.
from rope_jax.rope.strategies.registry import *  # noqa: F403
from rope_jax.rope.strategies.registry import PLAIN
from rope_jax.rope.strategies.resonance import ResonanceScaling

_ALL: tuple[type[Scaling], ...] = (*PLAIN, ResonanceScaling, BucketedScaling)
STRATEGIES = {strategy.model_fields["type"].default: strategy for strategy in _ALL}

# The type of a config field that holds a strategy: the union of all, discriminated by `type`.
if TYPE_CHECKING:
    AnyScaling = Scaling
else:
    AnyScaling = Annotated[Union[*STRATEGIES.values()], Field(discriminator="type")]
_ADAPTER: TypeAdapter[Scaling] = TypeAdapter(AnyScaling)


def parse_scaling(settings: Mapping[str, Any] | str) -> Scaling:
    """Return a frozen strategy from its settings, such as {"type": "yarn", "factor": 8.0}.

    A bare name such as "dynamic_ntk" stands for {"type": "dynamic_ntk"}.

    ValueError: a setting is unknown, missing or out of range; the message is one line and names it.
    """
    if isinstance(settings, str):
        settings = {"type": settings}
    name = settings.get("type") if isinstance(settings, Mapping) else settings
    if not isinstance(name, str) or name not in STRATEGIES:
        raise ValueError(f"type: {name!r} is not a scaling; choose from {', '.join(STRATEGIES)}")
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        message = first_error(error, skip=1)
        if error.errors()[0]["type"] == "extra_forbidden":
            message += f"; {name} has {', '.join(STRATEGIES[name].model_fields)}"
        raise ValueError(message) from None
