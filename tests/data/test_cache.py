"""The name of a corpus's folder in the cache, and the settings it depends on."""

import pytest

from rope_jax.config.data import HubData, JsonLinesData
from rope_jax.data.cache import cache_folder
from rope_jax.errors import UserError


def test_the_name_depends_on_every_field_but_cache_dir(tmp_path):
    (tmp_path / "a").write_text("{}")
    data = JsonLinesData(files=[str(tmp_path / "a")])
    hub = HubData(id="a/b")
    changed = [
        data,
        data.model_copy(update={"column": "body"}),
        data.model_copy(update={"test_fraction": 0.2}),
        data.model_copy(update={"validation_fraction": 0.2}),
        hub,
        *(hub.model_copy(update={k: "x"}) for k in ("id", "subset", "revision", "column")),
        hub.model_copy(update={"max_documents": 3}),
    ]
    names = {cache_folder(d, "bytes").name for d in changed} | {cache_folder(data, "other").name}
    names.add(cache_folder(data, "bytes", "test").name)
    assert len(names) == len(changed) + 2
    streamed = hub.model_copy(update={"streaming": True})  # gives the same documents
    assert cache_folder(streamed, "bytes") == cache_folder(hub, "bytes")
    moved = cache_folder(data.model_copy(update={"cache_dir": "~/x"}), "bytes")
    assert moved.name == cache_folder(data, "bytes").name
    assert "~" not in str(moved)


def test_a_cache_that_has_no_path_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "\udcff"))
    with pytest.raises(UserError, match=r"^data\.cache_dir: the path of .*\\udcff/rope_jax is not"):
        cache_folder(HubData(id="a/b"), "bytes")
    monkeypatch.delenv("XDG_CACHE_HOME")

    def no_home(*_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    with pytest.raises(UserError, match=r"^data\.cache_dir: you have no home directory; name"):
        cache_folder(HubData(id="a/b"), "bytes")
