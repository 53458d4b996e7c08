import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from perfmodel.base.errors import OutputError
from perfmodel.base.writing import (
    draft_folder_of,
    draft_of,
    printable_lines,
    recover_folder,
    write_csv,
    write_file,
    write_output,
)


def names_in(folder):
    return [path.name for path in folder.iterdir()]


def fill(draft_maker, target, content, *, part=""):
    """Fill a draft with *content*, then break off."""
    with draft_maker(target) as draft:
        (draft / part if part else draft).write_text(content)
        raise ZeroDivisionError


def test_a_file_appears_whole_under_its_name(tmp_path):
    target = tmp_path / "answer.json"

    write_file(target, "new")

    assert target.read_text() == "new"
    assert names_in(tmp_path) == ["answer.json"]


def test_a_draft_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "answer.json"
    target.write_text("old")

    with pytest.raises(ZeroDivisionError):
        fill(draft_of, target, "half")

    assert target.read_text() == "old"
    assert names_in(tmp_path) == ["answer.json"]


def test_a_missing_folder_is_told_in_a_sentence(tmp_path):
    with pytest.raises(OutputError, match=r"cannot be written \(No such file or directory\)"):
        write_file(tmp_path / "missing" / "answer.json", "text")


def test_a_full_disk_is_told_in_a_sentence_and_leaves_nothing(tmp_path):
    # A limit on the size of files simulates a full disk: the write stops half-way.
    script = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from perfmodel.base.errors import OutputError
        from perfmodel.base.writing import write_file
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_file(Path(sys.argv[1]), "x" * 10_000)
        except OutputError as fault:
            print(fault)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "big")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "cannot be written (File too large)" in done.stdout
    assert names_in(tmp_path) == []


def test_a_dash_is_standard_output_and_none_is_nowhere(capsys, tmp_path):
    write_output("-", "to the screen")
    write_output(None, "nowhere")

    assert capsys.readouterr().out == "to the screen"


def test_a_folder_is_replaced_only_by_a_whole_one(tmp_path):
    folder = tmp_path / "job"
    with draft_folder_of(folder) as draft:
        (draft / "part").write_text("first")

    with pytest.raises(ZeroDivisionError):
        fill(draft_folder_of, folder, "second", part="part")

    assert (folder / "part").read_text() == "first"
    with draft_folder_of(folder) as draft:
        (draft / "part").write_text("third")
    assert (folder / "part").read_text() == "third"
    assert names_in(tmp_path) == ["job"]


def test_a_second_writer_of_a_folder_is_refused_while_the_first_is_at_work(tmp_path):
    folder = tmp_path / "job"

    with (
        draft_folder_of(folder),
        pytest.raises(OutputError, match="another process is writing it"),
        draft_folder_of(folder),
    ):
        pass


def test_an_old_folder_that_a_killed_writer_had_set_aside_comes_back(tmp_path):
    # What stands on the disk between the two renames: the old folder under its kept name.
    kept = tmp_path / ".job.old"
    kept.mkdir()
    (kept / "part").write_text("first")

    with pytest.raises(ZeroDivisionError), draft_folder_of(tmp_path / "job"):
        raise ZeroDivisionError

    assert (tmp_path / "job" / "part").read_text() == "first"


def test_a_device_stays_a_device_and_a_full_one_is_told(tmp_path):
    device = tmp_path / "full"
    device.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left on device"):
        write_file(device, "text")
    assert device.is_char_device()


def test_a_pipe_stays_a_pipe_and_gets_the_content(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        heard = pool.submit(pipe.read_text)
        write_file(pipe, "text")
        assert heard.result() == "text"
    assert pipe.is_fifo()


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path):
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    target.write_text("old")
    link.symlink_to(target)

    write_file(link, "new")

    assert link.is_symlink()
    assert target.read_text() == "new"


def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path):
    file = tmp_path / "tables.csv"
    write_csv(file, [{"table": "=cmd|' /C calc'!A1", "change": "-5.2", "count": -3}])
    assert file.read_text().splitlines()[1] == "'=cmd|' /C calc'!A1,-5.2,-3"
    write_csv(file, [{"table": "a\x1b[2Jb", "change": "@sum(a)", "count": "+x"}])
    assert file.read_text().splitlines()[1] == "a?[2Jb,'@sum(a),'+x"


def test_control_characters_are_replaced_but_for_ends_of_lines():
    assert printable_lines("a\x1b[2Jb\nc\td\x07") == "a?[2Jb\nc?d?"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_an_old_folder_that_another_user_made_is_not_put_back(tmp_path):
    kept = tmp_path / ".job.old"
    kept.mkdir()
    os.chown(kept, 12345, 12345)
    recover_folder(tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    (tmp_path / ".job.lock").symlink_to(target)
    with pytest.raises(OutputError, match="cannot be written"), draft_folder_of(tmp_path / "job"):
        pass
    assert not target.exists()


def test_a_draft_that_a_killed_writer_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / ".job.draft"
    left.mkdir()
    (left / "half").write_text("of a job")
    with draft_folder_of(tmp_path / "job") as draft:
        assert not any(draft.iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
