"""What the code of model types does about positions that their config need not say.

`model_types.toml` says what each set is.
"""

import tomllib
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_TYPES = {name: frozenset(types.split()) for name, types in _TABLE["types"].items()}

DEFAULT_BASES = {
    model_type: float(base)
    for base, types in _TABLE["default_bases"].items()
    for model_type in types.split()
}
DERIVES_HEAD_DIM = _TYPES["derives_head_dim"]
ROTATES_PART = _TYPES["rotates_part"]
MAY_ROTATE_PART = ROTATES_PART | _TYPES["may_rotate_part"]
ROTATES_WHOLE = DERIVES_HEAD_DIM.union(DEFAULT_BASES) - MAY_ROTATE_PART | _TYPES["rotates_whole"]
GLOBAL_LAYERS_UNROTATED = _TYPES["global_layers_unrotated"]
EVERY_FOURTH_UNROTATED = _TYPES["every_fourth_unrotated"]
UNROTATED_QUERIES_SCALED = _TYPES["unrotated_queries_scaled"]
QUERIES_SCALED = _TYPES["queries_scaled"]
SOFTMAX_SCALED = _TYPES["softmax_scaled"]
