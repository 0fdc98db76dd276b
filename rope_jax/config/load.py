"""Load a YAML file and `key=value` overrides as one validated, frozen model; dump it as YAML."""

import errno
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rope_jax.config.explain import Model, validate
from rope_jax.config.overrides import apply_overrides
from rope_jax.config.yaml_text import NotYamlError, dump_yaml, first_line, parse_yaml
from rope_jax.errors import UserError
from rope_jax.rope.files import read_limited

_MAX_BYTES = 2**18  # a larger file is not a config, and is slow to parse


def load(schema: type[Model], path: Path | None, overrides: Sequence[str] = ()) -> Model:
    """Read `path` (None: start from nothing), apply the overrides in order, validate.

    Raises UserError.
    """
    return validate(schema, *read_raw(path, overrides))


def read_raw(path: Path | None, overrides: Sequence[str] = ()) -> tuple[Any, str]:
    """Return what `load` validates, and where it comes from, as errors name it.

    Raises UserError.
    """
    raw = {} if path is None else read_yaml(path)
    apply_overrides(raw, overrides)
    origin = "overrides" if path is None else str(path)
    return resolve(raw, origin), origin


def dump(config: BaseModel) -> str:
    """Return the resolved config as YAML, which loads as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def read_yaml(path: Path) -> dict[Any, Any]:
    """Return the content of a YAML file, with its interpolations unresolved. Raises UserError."""
    try:
        content = read_limited(path, _MAX_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a YAML file") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.EFBIG:
            raise UserError(
                f"{path}: is larger than {_MAX_BYTES:,} bytes, the limit for a config"
            ) from None
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({why})") from None
    try:
        loaded = parse_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        where = f"byte {error.start}"
        raise UserError(f"{path}: is not UTF-8 ({where}); save the YAML as UTF-8") from None
    except NotYamlError as error:
        raise UserError(f"{path}: {error.where}not valid YAML ({error.problem})") from None
    if loaded is not None and not isinstance(loaded, dict):
        raise UserError(f"{path}: should contain `key: value` lines")
    return loaded or {}


def resolve(raw: dict[Any, Any], origin: str) -> Any:
    """Return `raw` with each interpolation replaced by the value it refers to.

    origin: where `raw` comes from; an error begins with it. Raises UserError.
    """
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException  # slow to import

    from rope_jax.config.references import BadReferenceError, resolve_references

    try:
        return resolve_references(raw)
    except BadReferenceError as error:
        raise UserError(f"{origin}: {error.key}: {error}") from None
    except OmegaConfBaseException as error:
        key = re.sub(r"\[(\w+)\]", r".\1", str(error.full_key or ""))
        message = re.sub(r"^\w+ raised while resolving interpolation: ", "", first_line(error))
        message = message.strip('"')
        if isinstance(error, MissingMandatoryValue):
            message = "is ???, which marks a value that has to be given"
        raise UserError(f"{origin}: {key}{': ' * bool(key)}{message}") from None
    except RecursionError:
        raise UserError(f"{origin}: nested too deeply") from None
