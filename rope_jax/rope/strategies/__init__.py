"""The scaling strategies, by `type`. To add one: a file here, and its class in registry.py."""

from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from rope_jax.rope.strategies.base import Scaling, first_error

# every class by its name as well: a new one is named in the registry alone
from rope_jax.rope.strategies.registry import *  # noqa: F403
from rope_jax.rope.strategies.registry import PLAIN
from rope_jax.rope.strategies.resonance import ResonanceScaling

_ALL: tuple[type[Scaling], ...] = (*PLAIN, ResonanceScaling)
STRATEGIES = {strategy.model_fields["type"].default: strategy for strategy in _ALL}

# One of the strategies, told apart by `type`: what a config field holds.
if TYPE_CHECKING:
    AnyScaling = Scaling
else:
    AnyScaling = Annotated[Union[*STRATEGIES.values()], Field(discriminator="type")]
_ADAPTER: TypeAdapter[Scaling] = TypeAdapter(AnyScaling)


def parse_scaling(settings: dict[str, Any]) -> Scaling:
    """A frozen strategy from its settings, e.g. {"type": "yarn", "factor": 8.0}.

    Bad settings: a ValueError of one line that names the field.
    """
    given = settings.get("type") if isinstance(settings, dict) else settings
    if not isinstance(settings, dict) or given not in list(STRATEGIES):
        raise ValueError(f"type: {given!r} is not a scaling; there are {', '.join(STRATEGIES)}")
    try:
        return _ADAPTER.validate_python(settings)
    except ValidationError as error:
        extra = error.errors()[0]["type"] == "extra_forbidden"
        fields = ", ".join(STRATEGIES[given].model_fields)
        hint = f"; {given} has {fields}" if extra else ""
        raise ValueError(first_error(error, skip=1) + hint) from None
