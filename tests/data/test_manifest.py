"""Folders that are complete or absent: two writers at once, damage, failure."""

import json
import os
import subprocess
import sys
import zlib

import pytest

from rope_jax.data.checksums import BLOCK
from rope_jax.data.manifest import Damaged, creating_folder, read_manifest

KEY = "0123456789abcdef" * 2
STRAY = f".{KEY}-{KEY}"


def fill(new, text="tokens"):
    with new.create("file") as file:
        file.write(text.encode())
    new.content["seen"] = text


def write(folder, text="tokens"):
    with creating_folder(folder) as new:
        fill(new, text)
    return folder


def test_nothing_is_visible_before_everything_is_written(tmp_path):
    folder = tmp_path / "deep" / KEY
    with creating_folder(folder) as new:
        fill(new)
        assert not folder.exists()
        assert read_manifest(folder) is None
    assert read_manifest(folder) == {"seen": "tokens"}
    assert [p.name for p in folder.parent.iterdir()] == [KEY]
    assert sorted(p.name for p in folder.iterdir()) == ["file", "manifest.json"]


def test_two_writers_both_succeed(tmp_path):
    folder = tmp_path / KEY
    with creating_folder(folder) as slow:
        write(folder)
        reader = (folder / "file").open()
        fill(slow)
    assert read_manifest(folder) == {"seen": "tokens"}
    assert reader.read() == "tokens"
    reader.close()
    assert [p.name for p in tmp_path.iterdir()] == [KEY]


def test_two_writers_repair_a_damaged_folder(tmp_path):
    folder = write(tmp_path / KEY)
    (folder / "file").unlink()
    with creating_folder(folder) as slow:
        write(folder)
        fill(slow)
    assert read_manifest(folder) == {"seen": "tokens"}
    assert (folder / "file").read_text() == "tokens"
    assert sorted(p.name for p in folder.iterdir()) == ["file", "manifest.json"]


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_every_block_has_the_checksum_of_its_bytes(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    with creating_folder(tmp_path / KEY) as new, new.create("file") as file:
        for begin in range(0, size, 700_001):  # pieces that end anywhere in a block
            file.write(data[begin : min(begin + 700_001, size)])
    manifest = json.loads((tmp_path / KEY / "manifest.json").read_text())["manifest"]
    blocks = [data[i : min(i + BLOCK, size)] for i in range(0, size, BLOCK)]
    assert manifest["files"]["file"] == {"size": size, "crc32": [zlib.crc32(b) for b in blocks]}
    assert read_manifest(tmp_path / KEY) == {}


def garbled(text):
    return lambda folder: (folder / "manifest.json").write_text(text)


def edited(key, value):
    def edit(folder):
        path = folder / "manifest.json"
        outer = json.loads(path.read_text())
        outer["manifest"][key] = value
        path.write_text(json.dumps(outer))

    return edit


def bit_flipped(folder):
    data = bytearray((folder / "file").read_bytes())
    data[3] ^= 1
    (folder / "file").write_bytes(data)


def as_a_folder(name):
    def replace(folder):
        (folder / name).unlink()
        (folder / name / "inside").mkdir(parents=True)

    return replace


def as_a_link_to(target):
    def replace(folder):
        for name in ("file", "manifest.json"):
            (folder / name).unlink()
            (folder / name).symlink_to(target)

    return replace


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((garbled(text), "manifest.json is damaged") for text in ("", "{", "[]", "{}", "\0")),
        (garbled("[" * 100_000), "manifest.json is damaged"),
        (garbled('{"manifest": {}, "crc32": 0}'), "manifest.json is damaged"),
        (
            garbled('{"content": {"seen": "tokens"}, "sizes": {"file": 6}}'),
            "manifest.json has no checksums, as an earlier version wrote it",
        ),
        (edited("content", {"seen": "other"}), "manifest.json is damaged"),
        (edited("folder", "another"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: (f / "file").unlink(), "file is missing"),
        (lambda f: (f / "file").write_bytes(b"short"), "file is damaged: 5 bytes instead of 6"),
        (lambda f: (f / "file").write_bytes(b"\0" * 6), "file is damaged: its checksum is wrong"),
        (bit_flipped, "file is damaged: its checksum is wrong"),
        (as_a_folder("file"), "file is not a regular file"),
        (as_a_folder("manifest.json"), "manifest.json is not a regular file"),
        (as_a_link_to("/dev/zero"), "manifest.json is not a regular file"),
        (as_a_link_to("nowhere"), "manifest.json is missing"),
    ],
)
def test_damage_is_found_and_replaced(tmp_path, damage, message):
    folder = write(tmp_path / KEY)
    damage(folder)
    with pytest.raises(Damaged) as caught:
        read_manifest(folder)
    assert str(caught.value) == message
    assert read_manifest(write(folder)) == {"seen": "tokens"}
    assert [p.name for p in tmp_path.iterdir()] == [KEY]


def test_every_flipped_bit_of_a_manifest_is_found(tmp_path):
    path = write(tmp_path / KEY) / "manifest.json"
    written = path.read_bytes()
    for bit in range(8 * len(written)):
        data = bytearray(written)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(Damaged):
            read_manifest(path.parent)


def test_the_files_of_another_folder_are_not_taken_for_its_own(tmp_path):
    write(tmp_path / KEY).rename(tmp_path / "another")
    with pytest.raises(Damaged, match=r"^manifest.json is damaged$"):
        read_manifest(tmp_path / "another")


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_something_else_of_its_name_is_replaced(tmp_path, kind):
    folder = tmp_path / KEY
    if kind == "file":
        folder.write_text("in the way")
    else:
        folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Damaged, match=r"^manifest\.json is missing$"):
        read_manifest(folder)
    assert read_manifest(write(folder)) == {"seen": "tokens"}


def test_a_failed_writer_leaves_nothing_behind(tmp_path):
    def fail():
        with creating_folder(tmp_path / KEY) as new:
            fill(new, "half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(tmp_path.iterdir())


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from rope_jax.data.manifest import creating_folder
with creating_folder(Path(sys.argv[1])) as new, new.create("file") as file:
    (new.path / "scratch").mkdir()
    file.write(b"half")
    print(new.path.name, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_only_the_folders_of_dead_writers_are_removed(tmp_path):
    (tmp_path / STRAY).mkdir()
    (tmp_path / STRAY / "file").write_text("left by an earlier version, which had no locks")
    kept = {".config-backup", f".{KEY}", f".mine-{KEY}", f"{KEY}-{KEY}"}
    for name in kept:
        (tmp_path / name).mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / KEY)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        alive = other.stdout.readline().strip()
        write(tmp_path / ("f" * 32))
        assert set(os.listdir(tmp_path)) == {*kept, alive, "f" * 32}
        other.communicate("")
    assert alive in os.listdir(tmp_path)  # nobody was left to remove it
    write(tmp_path / ("e" * 32))
    assert set(os.listdir(tmp_path)) == {*kept, "f" * 32, "e" * 32}


def test_folders_can_be_written_where_there_are_no_locks(tmp_path, monkeypatch):
    (tmp_path / STRAY).mkdir()

    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    assert read_manifest(write(tmp_path / KEY)) == {"seen": "tokens"}
    assert set(os.listdir(tmp_path)) == {KEY, STRAY}  # nobody can tell whether it is in use
