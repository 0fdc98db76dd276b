"""Folders written at once: by two at a time, over damage, or not at all."""

import pytest

from rope_jax.config.data import HubData, JsonLinesData
from rope_jax.data.cache import cache_folder, read_manifest, written_at_once
from rope_jax.errors import UserError


def write(folder, text="tokens"):
    with written_at_once(folder) as (new, content):
        (new / "file").write_text(text)
        content["seen"] = text
    return folder


def test_nothing_is_seen_before_all_is_written(tmp_path):
    folder = tmp_path / "deep" / "key"
    with written_at_once(folder) as (new, content):
        (new / "file").write_text("tokens")
        content["seen"] = 1
        assert not folder.exists()
        assert read_manifest(folder) is None
    assert read_manifest(folder) == {"seen": 1}
    assert [p.name for p in folder.parent.iterdir()] == ["key"]


def test_two_writers_both_succeed(tmp_path):
    folder = tmp_path / "key"
    with written_at_once(folder) as (slow, content):
        write(folder)
        reader = (folder / "file").open()
        (slow / "file").write_text("tokens")
        content["seen"] = "tokens"
    assert read_manifest(folder) == {"seen": "tokens"}
    assert reader.read() == "tokens"
    reader.close()
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_two_writers_over_damage(tmp_path):
    folder = write(tmp_path / "key")
    (folder / "file").unlink()
    with written_at_once(folder) as (slow, content):
        write(folder)
        (slow / "file").write_text("tokens")
        content["seen"] = "tokens"
    assert read_manifest(folder) == {"seen": "tokens"}
    assert (folder / "file").read_text() == "tokens"


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"content": 1, "sizes": 5}'])
def test_a_garbled_manifest_is_damage(tmp_path, manifest):
    folder = write(tmp_path / "key")
    (folder / "manifest.json").write_text(manifest)
    assert read_manifest(folder) is None
    assert read_manifest(write(folder)) == {"seen": "tokens"}


def test_a_failed_writer_leaves_nothing(tmp_path):
    def fail():
        with written_at_once(tmp_path / "key") as (new, _):
            (new / "file").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_names_the_key(tmp_path):
    with (
        pytest.raises(UserError, match=r"^data\.cache_dir: .* \(No space left on device\); name a"),
        written_at_once(tmp_path / "key"),
    ):
        raise OSError(28, "No space left on device")


def test_the_folder_depends_on_every_field_but_where_it_is(tmp_path):
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
    ]
    names = {cache_folder(d, "bytes").name for d in changed} | {cache_folder(data, "other").name}
    assert len(names) == len(changed) + 1
    moved = cache_folder(data.model_copy(update={"cache_dir": "~/x"}), "bytes")
    assert moved.name == cache_folder(data, "bytes").name
    assert "~" not in str(moved)
