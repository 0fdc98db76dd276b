"""Files that others wrote are read up to a limit, and nothing is waited for."""

import os
from pathlib import Path

import pytest

from rope_jax.rope.files import read_limited


def test_a_file_is_read_up_to_the_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"four")
    assert read_limited(path, 4) == b"four"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_limited(path, 3)
    os.truncate(path, 2**40)  # of which nothing is stored
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_limited(path, 4)


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_limited(tmp_path / "link", 9) == b"content"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
def test_a_device_is_refused(device):
    with pytest.raises(OSError, match="not a regular file"):
        read_limited(Path(device), 9)


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe that nothing is written to"):
        read_limited(tmp_path / "pipe", 9)


def test_a_pipe_is_read_up_to_the_limit_but_not_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("rope_jax.rope.files._PATIENCE", 0.05)
    read_end, write_end = os.pipe()
    path = Path(f"/dev/fd/{read_end}")
    with pytest.raises(OSError, match="a pipe not closed within"):
        read_limited(path, 9)
    os.write(write_end, b"content")
    os.close(write_end)
    assert read_limited(path, 9) == b"content"
    os.close(read_end)
    read_end, write_end = os.pipe()
    os.write(write_end, b"content")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_limited(Path(f"/dev/fd/{read_end}"), 3)
    os.close(read_end)
    os.close(write_end)


def test_a_folder_a_loop_and_a_long_name_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, says in ((".", "directory"), ("loop", "symbolic links"), ("x" * 300, "too long")):
        with pytest.raises(OSError, match=says):
            read_limited(tmp_path / name, 9)
