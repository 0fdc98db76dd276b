"""scripts/write_schemas.py: each config in configs/ names the schema that is written for it."""

import json
import re

import yaml

from scripts import write_schemas


def test_each_config_names_its_schema(tmp_path, monkeypatch):
    configs = write_schemas.FOLDER.parent
    monkeypatch.setattr(write_schemas, "FOLDER", tmp_path / "schema")
    write_schemas.main()
    for path in configs.rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        named = re.match(r"# yaml-language-server: \$schema=(\S+)  \(from `make schema`\)\n", text)
        schema = tmp_path / (path.parent / named[1]).resolve().relative_to(configs)
        properties = json.loads(schema.read_text(encoding="utf-8"))["properties"]
        assert set(yaml.safe_load(text)) <= set(properties), path
