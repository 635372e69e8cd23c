"""The rows that are held, and the files that they are written to."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from tunewire.telemetry import HostReadings, Row, Scope, read_rows
from tunewire.telemetry.store import Store, line_of, timestamped_name, write_lines


def row(number):
    host = HostReadings(memory_used_bytes=1, memory_available_bytes=2, memory_total_bytes=3)
    scopes = (Scope("a/b", {"backend": "x"}),)
    return Row(
        number=number, seconds=0.25, unix_time=1.7e9, scopes=scopes, host=host, more={"m": {"x": None}}
    )


def store_of(count, max_bytes=1 << 20):
    store = Store(max_bytes)
    for number in range(count):
        store.add(line_of(row(number)))
    return store


def test_reading_what_is_held_takes_nothing_away():
    store = store_of(2)
    assert list(store.rows()) == [row(0), row(1)]
    store.add(line_of(row(2)))
    assert list(store.rows()) == [row(0), row(1), row(2)]


def test_rows_that_came_while_a_file_was_written_are_not_forgotten_with_those_in_it():
    store = store_of(3)
    lines, end = store.held()
    store.add(line_of(row(3)))
    store.forget(end)
    assert len(lines) == 3
    assert list(store.rows()) == [row(3)]
    store.forget(end)
    assert len(store) == 1


def test_the_oldest_rows_go_where_there_is_no_room_and_are_counted():
    size = len(line_of(row(0))) + 41
    store = store_of(10, max_bytes=4 * size)
    assert [each.number for each in store.rows()] == [6, 7, 8, 9]
    assert store.dropped == 6
    lines, end = store.held()
    store.forget(end)
    assert (len(lines), len(store), store.dropped) == (4, 0, 6)


def test_the_newest_row_is_held_however_little_room_there_is():
    store = store_of(3, max_bytes=1)
    assert [each.number for each in store.rows()] == [2]


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("what was there")
    write_lines(str(path), [line_of(row(0)), line_of(row(1))])
    assert read_rows(path) == [row(0), row(1)]
    assert os.listdir(tmp_path) == ["rows.jsonl"]


def test_a_file_is_as_readable_as_any_other_new_one(tmp_path):
    (tmp_path / "other").touch()
    write_lines(str(tmp_path / "rows.jsonl"), [])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "rows.jsonl")
    write_lines(str(tmp_path / "link"), [line_of(row(0))])
    assert (tmp_path / "link").is_symlink()
    assert read_rows(tmp_path / "rows.jsonl") == [row(0)]


@pytest.mark.parametrize("where", ["no folder/rows.jsonl", "folder", "a file/rows.jsonl"])
def test_what_cannot_be_written_is_an_error_that_names_it_and_leaves_nothing(tmp_path, where):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a file").touch()
    with pytest.raises(OSError, match=where):
        write_lines(str(tmp_path / where), [line_of(row(0))])
    assert sorted(os.listdir(tmp_path)) == ["a file", "folder"]


def test_lines_that_fail_half_way_leave_the_file_that_was_there(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("what was there")

    def full_disk():
        yield b"{}\n"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_lines(str(path), full_disk())
    assert path.read_text() == "what was there"
    assert os.listdir(tmp_path) == ["rows.jsonl"]


def test_a_device_is_written_to_and_not_replaced():
    write_lines(os.devnull, [line_of(row(0))])
    assert Path(os.devnull).is_char_device()


def test_another_file_is_no_file_of_rows(tmp_path):
    (tmp_path / "other").write_text('{"x": 1}\n')
    with pytest.raises(msgspec.ValidationError):
        read_rows(tmp_path / "other")


def test_a_timestamped_name_is_of_this_process():
    assert str(os.getpid()) in timestamped_name()
