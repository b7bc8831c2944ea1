"""Folders that are written to: made with their parents, or refused by the name of the argument."""

import errno
import re
import tempfile

import pytest

from ncollapse.grammar import count, join
from ncollapse.output import find_file_in_the_way, make_folder, refuse_file, writing_to


def test_a_folder_is_made_with_its_parents_and_may_be_there_already(tmp_path):
    folder = tmp_path / "a" / "b"
    for _ in range(2):
        make_folder(folder, tmp_path / "a")
        assert folder.is_dir()
        assert list(folder.iterdir()) == [], "what was tried leaves nothing"


def test_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert find_file_in_the_way(tmp_path / "new" / "folder") is None
    assert find_file_in_the_way(file / "new" / "folder") == file
    refuse_file(tmp_path / "new", tmp_path)
    with pytest.raises(NotADirectoryError, match=rf"^--out {re.escape(str(file))}: is a file, not a folder$"):
        make_folder(file, file)
    with pytest.raises(
        NotADirectoryError, match=rf"^--out {re.escape(str(tmp_path))}: {re.escape(str(file))} is a file, not a folder$"
    ):
        make_folder(file / "new", tmp_path)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    """The folder is there and mkdir succeeds; only a file in it shows that it is read-only."""

    def refuse(*, dir):
        assert dir == tmp_path
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(
        PermissionError, match=rf"^--out {re.escape(str(tmp_path))}: cannot be written: Read-only file system$"
    ):
        make_folder(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EROFS, PermissionError), (errno.EACCES, PermissionError), (errno.EPERM, PermissionError)]
    + [(errno.ENOSPC, OSError)],
)
def test_errors_of_the_file_system_name_the_place(number, kind):
    with pytest.raises(OSError, match=r"^page\.html: cannot be written: the reason$") as found, writing_to("page.html"):
        raise OSError(number, "the reason")
    assert type(found.value) is kind


def test_other_errors_stay_as_they_are():
    for error in (OSError("in words of its own"), ValueError("no file")):
        with pytest.raises(type(error)) as found, writing_to("page.html"):
            raise error
        assert found.value is error


def test_numbers_and_lists_in_sentences():
    assert [count(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [join(words) for words in ([], ["a"], ["a", "b"], ["a", "b", 3])] == ["", "a", "a and b", "a, b and 3"]
