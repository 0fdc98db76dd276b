"""Validate a raw config; the first error is explained in one line."""

from typing import Any

from rope_jax.config.messages import Model, validated
from rope_jax.errors import UserError, errors_in


def validate(schema: type[Model], raw: Any, origin: str) -> Model:
    """Validate `raw`; a UserError names its origin, the first wrong key and what would be right."""
    with errors_in(f"{origin}: ", UserError):
        return validated(schema, raw)
