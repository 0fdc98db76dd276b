"""Folders that are complete or absent: two writers at once, damage, failure."""

import pytest

from rope_jax.data.manifest import creating_folder, read_manifest


def write(folder, text="tokens"):
    with creating_folder(folder) as (new, content):
        (new / "file").write_text(text)
        content["seen"] = text
    return folder


def test_nothing_is_visible_before_everything_is_written(tmp_path):
    folder = tmp_path / "deep" / "key"
    with creating_folder(folder) as (new, content):
        (new / "file").write_text("tokens")
        content["seen"] = 1
        assert not folder.exists()
        assert read_manifest(folder) is None
    assert read_manifest(folder) == {"seen": 1}
    assert [p.name for p in folder.parent.iterdir()] == ["key"]


def test_two_writers_both_succeed(tmp_path):
    folder = tmp_path / "key"
    with creating_folder(folder) as (slow, content):
        write(folder)
        reader = (folder / "file").open()
        (slow / "file").write_text("tokens")
        content["seen"] = "tokens"
    assert read_manifest(folder) == {"seen": "tokens"}
    assert reader.read() == "tokens"
    reader.close()
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_two_writers_repair_a_damaged_folder(tmp_path):
    folder = write(tmp_path / "key")
    (folder / "file").unlink()
    with creating_folder(folder) as (slow, content):
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


def test_a_failed_writer_leaves_nothing_behind(tmp_path):
    def fail():
        with creating_folder(tmp_path / "key") as (new, _):
            (new / "file").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(tmp_path.iterdir())
