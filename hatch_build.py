"""What a wheel holds besides the files in git: the kernels, and the JSON schemas of configs.

Hatchling calls this file, see pyproject.toml. An editable install gets the kernels alone, and needs
no package for that.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rope_jax.kernels.build import KernelHook


class WheelHook(KernelHook):
    """Adds the kernels and the schemas."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        super().initialize(version, build_data)
        if version != "editable":
            from scripts import write_schemas

            try:
                write_schemas.main()
            except OSError as error:
                print(f"without schemas: {error}", file=sys.stderr)
                return
            build_data["artifacts"].append("configs/schema/*.json")


def get_build_hook() -> type[WheelHook]:
    """Return the hook; hatchling would not know which of two classes is meant."""
    return WheelHook
