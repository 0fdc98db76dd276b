"""Validate a raw config; the first error is explained in one line."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rope_jax.errors import UserError
from rope_jax.rope.messages import explain

Model = TypeVar("Model", bound=BaseModel)


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """Validate `raw`; a UserError names its origin, the first wrong key and what would be right."""
    try:
        return schema.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, raw, schema)}") from None
