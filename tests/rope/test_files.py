"""Files that others wrote are read up to a limit, and nothing that never ends is read."""

import os
from pathlib import Path

import pytest

from rope_jax.rope.files import read_limited


def test_a_file_or_a_link_to_it_is_read_up_to_the_limit(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"four")
    (tmp_path / "link").symlink_to(path)
    assert read_limited(path, 4) == read_limited(tmp_path / "link", 9) == b"four"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_limited(path, 3)
    os.truncate(path, 2**40)  # of which nothing is stored
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_limited(path, 4)


def test_what_is_no_file_is_refused(tmp_path):
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(OSError, match="not a regular file"):
            read_limited(Path(device), 9)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, says in ((".", "directory"), ("loop", "symbolic links"), ("x" * 300, "too long"),
                       ("pipe", "a pipe that nothing is written to")):  # fmt: skip
        with pytest.raises(OSError, match=says):
            read_limited(tmp_path / name, 9)


@pytest.mark.parametrize("most", [9, 3])
def test_a_pipe_is_read_up_to_the_limit(most):
    read_end, write_end = os.pipe()
    os.write(write_end, b"content")
    if most == 9:
        os.close(write_end)
        assert read_limited(Path(f"/dev/fd/{read_end}"), most) == b"content"
    else:
        with pytest.raises(OSError, match="larger than 3 bytes"):
            read_limited(Path(f"/dev/fd/{read_end}"), most)
        os.close(write_end)
    os.close(read_end)
